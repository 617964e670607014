"""Backups of a home: packs of content by digest, and one manifest for each backup."""
