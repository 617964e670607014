"""A chat product: each user has a session, each answer is a snapshot, and a user can go back to any of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import workstead

if TYPE_CHECKING:
    from workstead.local import Local
    from workstead.workspaces import Session


def answer(workspaces: Local, session: Session, message: str) -> str:
    """Answer one message: stands for a model that runs a command in the workspace of its user."""
    run = workspaces.run(
        session.workspace.id, ["sh", "-c", 'echo "$MESSAGE" >> page.txt'], environment={"MESSAGE": message}
    )
    if workspaces.wait(run.id).exit_code != 0:
        raise SystemExit(f"the run failed: aw why {run.id}")
    turn = session.respond(message)
    return f"done, state {turn.hash[:8]}"


def page_of(workspaces: Local, session: Session) -> list[str]:
    return workspaces.read_text(session.workspace.id, "work/page.txt").splitlines()


def main() -> None:
    with workstead.open() as workspaces:
        ids = [workspaces.create(agent=user).id for user in ("ada", "bob")]
        ada, bob = (workspaces.session(id) for id in ids)
        for message in ("add a title", "add a table", "add a mistake"):
            print(f"ada: {message} -> {answer(workspaces, ada, message)}")
        print(f"bob: hello -> {answer(workspaces, bob, 'hello')}")

        print("ada's answers:", ", ".join(turn.label for turn in ada.turns()))
        ada.restore(ada.turns()[1])
        print("after going back:", page_of(workspaces, ada))
        workspaces.undo()
        print("after undo:", page_of(workspaces, ada))
        print("bob's page is his own:", page_of(workspaces, bob))

        ada.reset()
        print("after a reset ada has", len(workspaces.list_directory(ada.workspace.id, "work")), "files")
        workspaces.destroy(*ids, force=True)


if __name__ == "__main__":
    main()
