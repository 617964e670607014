"""The values that verbs return, for doors that describe them or rebuild them from another door's response."""

from __future__ import annotations

from workstead.model.approval import Approval
from workstead.model.archive import Archived, Contents, KnownArchive
from workstead.model.change import Applied, Change, Diff, FileChange, Overlap
from workstead.model.edit import Edited
from workstead.model.event import Event
from workstead.model.explanation import Explanation
from workstead.model.file import Entry, Found, Gone, Matches, Named, Stat, Tree, Written
from workstead.model.folder import Folder, RecentFolder
from workstead.model.health import Damage, Finding, Probe
from workstead.model.machine import Mounted
from workstead.model.message import Message
from workstead.model.operation import Operation
from workstead.model.overview import Summary
from workstead.model.policy import Decision, Policy
from workstead.model.race import Comparison, Race
from workstead.model.retention import Candidate
from workstead.model.run import Command, Glance, Run
from workstead.model.session import Turn
from workstead.model.snapshot import Restored, Snapshot
from workstead.model.template import Template
from workstead.model.token import Token
from workstead.model.usage import Usage, WorkspaceUsage
from workstead.model.verification import Verification
from workstead.model.watch import Watching
from workstead.model.workspace import Workspace

__all__ = [
    "Applied",
    "Approval",
    "Archived",
    "Candidate",
    "Change",
    "Command",
    "Comparison",
    "Contents",
    "Decision",
    "Diff",
    "Edited",
    "Entry",
    "Event",
    "Explanation",
    "FileChange",
    "Damage",
    "Finding",
    "Folder",
    "Found",
    "Glance",
    "Gone",
    "KnownArchive",
    "Matches",
    "Message",
    "Mounted",
    "Named",
    "Operation",
    "Overlap",
    "Policy",
    "Probe",
    "Race",
    "RecentFolder",
    "Restored",
    "Run",
    "Snapshot",
    "Stat",
    "Summary",
    "Template",
    "Token",
    "Tree",
    "Turn",
    "Usage",
    "Verification",
    "Watching",
    "Workspace",
    "WorkspaceUsage",
    "Written",
]
