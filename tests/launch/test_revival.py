"""Which processes of an asynchronous run are started again."""

from types import SimpleNamespace

from trireme.launch.revival import MAX_REVIVALS, Revival


def process(exit_code=-9, rank=1):
    failure = SimpleNamespace(message="was killed by SIGKILL") if exit_code else None
    return SimpleNamespace(
        rank=rank, pid=7, role="worker", exit_code=exit_code, failure=failure, finish=lambda: None
    )


def revive(revival, processes):
    return revival.revive(processes, lambda old: process(exit_code=None, rank=old.rank))


def test_whoever_was_killed_is_started_again_a_few_times():
    said = []
    revival = Revival(True, lambda: False, said.append)
    for _ in range(MAX_REVIVALS):
        processes = [process(None, 0), process()]
        assert revive(revival, processes)
        assert [each.exit_code for each in processes] == [None, None]
    assert said == ["trireme: worker 1 (pid 7) was killed by SIGKILL; it is started again\n"] * MAX_REVIVALS
    processes = [process()]
    assert not revive(revival, processes)
    assert processes[0].exit_code == -9


def test_whoever_failed_by_itself_is_not():
    assert not revive(Revival(True, lambda: False, lambda text: None), [process(exit_code=1)])


def test_nobody_is_when_the_run_ends_or_the_workers_need_each_other():
    assert not revive(Revival(True, lambda: True, lambda text: None), [process()])
    assert not revive(Revival(False, lambda: False, lambda text: None), [process()])
