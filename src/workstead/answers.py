"""The values that verbs give, for doors that describe them or build them anew from what another door sent."""

from __future__ import annotations

from workstead.archives.read import Contents
from workstead.model.approval import Approval
from workstead.model.change import Change, Diff, FileChange, Overlap
from workstead.model.event import Event
from workstead.model.operation import Operation
from workstead.model.policy import Decision, Policy
from workstead.model.race import Comparison, Race
from workstead.model.run import Command, Run
from workstead.model.snapshot import Snapshot
from workstead.model.token import Token
from workstead.model.watch import Watching
from workstead.model.workspace import Workspace
from workstead.snapshots.restore import Restored
from workstead.store.log import Verification
from workstead.system.files import Entry, Gone, Stat, Written
from workstead.system.search import Found, Matches, Named
from workstead.system.walk import Tree
from workstead.verbs.apply import Applied
from workstead.verbs.archive import Archived, KnownArchive
from workstead.verbs.attend import Glance
from workstead.verbs.doctor import Probe
from workstead.verbs.edit import Edited
from workstead.verbs.machines import Mounted
from workstead.verbs.mail import Message
from workstead.verbs.recent import Folder, RecentFolder
from workstead.verbs.repair import Finding
from workstead.verbs.session import Turn
from workstead.verbs.sweep import Candidate
from workstead.verbs.template import Template
from workstead.verbs.usage import Usage, WorkspaceUsage
from workstead.verbs.why import Explanation

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
