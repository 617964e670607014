"""Backups of a home: content-addressed packs, and one manifest for each backup."""
