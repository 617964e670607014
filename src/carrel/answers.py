"""The values that verbs give, for doors that describe them or build them anew from what another door sent."""

from __future__ import annotations

from carrel.archives.read import Contents
from carrel.model.approval import Approval
from carrel.model.change import Change, Diff, FileChange, Overlap
from carrel.model.event import Event
from carrel.model.operation import Operation
from carrel.model.policy import Decision, Policy
from carrel.model.race import Comparison, Race
from carrel.model.run import Command, Run
from carrel.model.snapshot import Snapshot
from carrel.model.token import Token
from carrel.model.watch import Watching
from carrel.model.workspace import Workspace
from carrel.snapshots.restore import Restored
from carrel.store.log import Verification
from carrel.system.files import Entry, Gone, Stat, Written
from carrel.system.search import Found, Matches, Named
from carrel.system.walk import Tree
from carrel.verbs.apply import Applied
from carrel.verbs.archive import Archived, KnownArchive
from carrel.verbs.attend import Glance
from carrel.verbs.doctor import Probe
from carrel.verbs.edit import Edited
from carrel.verbs.machines import Mounted
from carrel.verbs.mail import Message
from carrel.verbs.recent import Folder, RecentFolder
from carrel.verbs.repair import Finding
from carrel.verbs.session import Turn
from carrel.verbs.sweep import Candidate
from carrel.verbs.template import Template
from carrel.verbs.usage import Usage, WorkspaceUsage
from carrel.verbs.why import Explanation

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
