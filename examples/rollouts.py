"""Run many short rollouts from one prepared state, a few at a time, with a progress bar and a reward for each."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor, as_completed

import workstead
from workstead.local import Local

ROLLOUTS = 8
AT_ONCE = 2

# Stands for a policy that acts in the workspace: rollout N writes the numbers up to N.
POLICY = 'seq "$ROLLOUT" > answer.txt'


def prepare(workspaces: Local) -> str:
    """Make the state that every rollout starts from; return its id."""
    start = workspaces.create()
    workspaces.write_file(start.id, "work/task.txt", "Write as many numbers as you can, one in each line.\n")
    return start.id


def roll_out(workspaces: Local, id: str, number: int) -> int:
    """Run one rollout to its end; return its reward, the number of lines."""
    run = workspaces.run(id, ["sh", "-c", POLICY], environment={"ROLLOUT": str(number)}, timeout_seconds=60)
    run = workspaces.wait(run.id)
    if run.exit_code != 0:
        return 0
    return len(workspaces.read_text(id, "work/answer.txt").splitlines())


def show_progress(done: int) -> None:
    bar = "#" * (30 * done // ROLLOUTS)
    print(f"\r[{bar:<30}] {done}/{ROLLOUTS}", end="\n" if done == ROLLOUTS else "", file=sys.stderr, flush=True)


def main() -> None:
    with workstead.open() as workspaces, ThreadPoolExecutor(AT_ONCE) as pool:
        start = prepare(workspaces)
        forks = [fork.id for fork in workspaces.fork(start, count=ROLLOUTS)]
        jobs = {pool.submit(roll_out, workspaces, id, number): id for number, id in enumerate(forks, 1)}
        rewards = {}
        for done, job in enumerate(as_completed(jobs), 1):
            rewards[jobs[job]] = job.result()
            show_progress(done)
        best = max(rewards, key=lambda id: rewards[id])
        print(f"mean reward {sum(rewards.values()) / ROLLOUTS}, best {rewards[best]}")
        workspaces.destroy(start, *forks, force=True)


if __name__ == "__main__":
    main()
