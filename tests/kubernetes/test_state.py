"""From the cluster's objects to what a person is told: tables of states, no cluster."""

from dataclasses import replace

import pytest

from tests.kubernetes.jobs import job
from tests.kubernetes.pod_objects import pod_object
from trireme.launch.kubernetes.observation import PodState, RunState, indexes, observe
from trireme.launch.kubernetes.render import render
from trireme.launch.kubernetes.table import COLUMNS, fitting, rows
from trireme.launch.kubernetes.verdict import hints, judge
from trireme.launch.progress_line import Progress

UNSCHEDULABLE = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."


def jobs(conditions=(), status=None, **options):
    """The Jobs of a run as the cluster has them; the first gets the conditions."""
    found = [one for one in render(job(**options)) if one["kind"] in ("Job", "JobSet")]
    found[0]["status"] = {"conditions": list(conditions), **(status or {})}
    return found


def failed(reason, message, **status):
    return [{"type": "Failed", "status": "True", "reason": reason, "message": message}], status


@pytest.mark.parametrize(
    ("status", "phase", "reason", "exit_code"),
    [
        ({"phase": "Running"}, "Running", "", None),
        ({"phase": "Pending"}, "Pending", "", None),
        (
            {
                "phase": "Pending",
                "conditions": [{"type": "PodScheduled", "status": "False", "message": UNSCHEDULABLE}],
            },
            "Pending",
            UNSCHEDULABLE,
            None,
        ),
        (
            {
                "phase": "Pending",
                "containerStatuses": [
                    {
                        "name": "main",
                        "state": {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling x"}},
                    }
                ],
            },
            "Pending",
            "ImagePullBackOff: Back-off pulling x",
            None,
        ),
        # On its way: nothing to worry about.
        (
            {
                "phase": "Pending",
                "containerStatuses": [
                    {"name": "main", "state": {"waiting": {"reason": "ContainerCreating"}}}
                ],
            },
            "Pending",
            "",
            None,
        ),
        # The container that copies the code waits for its image.
        (
            {
                "phase": "Pending",
                "containerStatuses": [{"name": "main", "state": {"waiting": {"reason": "PodInitializing"}}}],
                "initContainerStatuses": [
                    {"name": "source", "state": {"waiting": {"reason": "ErrImagePull"}}}
                ],
            },
            "Pending",
            "ErrImagePull",
            None,
        ),
        (
            {
                "phase": "Failed",
                "containerStatuses": [
                    {
                        "name": "main",
                        "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled", "startedAt": None}},
                    }
                ],
            },
            "Failed",
            "OOMKilled",
            137,
        ),
        (
            {
                "phase": "Failed",
                "conditions": [
                    {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
                ],
            },
            "Failed",
            "PreemptionByScheduler",
            None,
        ),
        (
            {"phase": "Failed", "reason": "Evicted", "message": "low on memory"},
            "Failed",
            "Evicted: low on memory",
            None,
        ),
    ],
)
def test_the_state_of_a_pod(status, phase, reason, exit_code):
    (state,) = observe("train", jobs(), [pod_object(0, **status)]).pods
    assert (state.phase, state.reason, state.exit_code) == (phase, reason, exit_code)


def test_a_pod_that_is_leaving():
    pod = pod_object(0, phase="Running", deleted="2026-10-01T10:00:30Z")
    (state,) = observe("train", jobs(), [pod]).pods
    assert (state.phase, state.deleted_at) == ("Terminating", 1790848830.0)


def test_ranks_that_are_not_there_are_missing():
    event = {
        "reason": "FailedCreate",
        "message": "exceeded quota: gpus",
        "involvedObject": {"name": "train-worker"},
        "lastTimestamp": "2026-10-01T10:00:00Z",
    }
    state = observe("train", jobs(workers=2, servers=1), [pod_object(1, phase="Running")], [event])
    assert [(pod.role, pod.index, pod.phase, pod.reason) for pod in state.pods] == [
        ("worker", 0, "Missing", "exceeded quota: gpus"),
        ("worker", 1, "Running", ""),
        ("server", 0, "Missing", ""),
    ]


def test_the_newest_pod_of_a_rank_counts():
    pods = [
        pod_object(0, name="b", phase="Failed", created="2026-10-01T10:00:00Z"),
        pod_object(0, name="c", phase="Running", created="2026-10-01T10:00:10Z"),
        # In the same second: who failed came first.
        pod_object(0, name="z", phase="Failed", created="2026-10-01T10:00:10Z"),
    ]
    state = observe("train", jobs(), pods)
    assert [pod.name for pod in (*state.earlier, *state.pods)] == ["b", "z", "c"]
    assert state.restarts(state.pods[0]) == 2


def test_the_pods_of_a_jobset():
    state = observe("train", jobs(workers=2, servers=1, jobset=True), [])
    assert [(pod.role, pod.index) for pod in state.pods] == [("worker", 0), ("worker", 1), ("server", 0)]
    done = [{"type": "Completed", "status": "True", "reason": "AllJobsCompleted"}]
    assert judge(observe("train", jobs(done, jobset=True), [])).exit_code == 0


@pytest.mark.parametrize(("text", "numbers"), [("", []), ("1", [1]), ("1,3-5,7", [1, 3, 4, 5, 7])])
def test_indexes(text, numbers):
    assert indexes(text) == numbers


W0, W1, W2 = (
    PodState("worker", index, f"train-{index}-x", "Running", f"n{index}", is_started=True)
    for index in range(3)
)
RUN = RunState("train", (W0, W1, W2))


def dead(pod, code, at=0.0, words="", **changes):
    return replace(pod, phase="Failed", exit_code=code, finished_at=at, last_words=words, **changes)


@pytest.mark.parametrize(
    ("state", "exit_code", "first"),
    [
        (replace(RUN, outcome="Complete"), 0, None),
        (replace(RUN, is_gone=True), 1, "the run train was deleted"),
        (replace(RUN, pods=(dead(W0, 143),), is_suspended=True), 143, "the run train was stopped"),
        # The controller names the pod.
        (
            replace(
                RUN,
                pods=(dead(W0, 75, 1.0), dead(W1, 64, 2.0), W2),
                outcome="Failed",
                decisive_pod="train-1-x",
                decisive_code=64,
            ),
            64,
            "worker 1 of 3 (pod train-1-x on n1) exited with code 64",
        ),
        # A rank has no restart left; another's failure was made up for.
        (
            replace(
                RUN,
                pods=(W0, W1, dead(W2, 1, 9.0)),
                earlier=(dead(W0, 2, 1.0, name="train-0-a"), dead(W2, 1, 5.0, name="train-2-a")),
                outcome="Failed",
                failed_indexes=(("worker", 2),),
            ),
            1,
            "worker 2 of 3 (pod train-2-x on n2) exited with code 1",
        ),
        # 65 says that the agents gave up: for what is somebody else's headline.
        (
            replace(
                RUN,
                pods=(dead(W0, 65, 3.0), dead(W1, 3, 2.0), dead(W2, 75, 2.5)),
                outcome="Failed",
                decisive_pod="train-0-x",
                decisive_code=65,
            ),
            65,
            "worker 1 of 3 (pod train-1-x on n1) exited with code 3",
        ),
        (
            replace(RUN, pods=(dead(W0, 137, 1.0, reason="OOMKilled"),), outcome="Failed"),
            137,
            "worker 0 of 1 (pod train-0-x on n0) ran out of memory and was killed (exit code 137): "
            "ask for more with --memory",
        ),
        (
            replace(RUN, pods=(dead(W0, 139, 1.0),), outcome="Failed"),
            139,
            "worker 0 of 1 (pod train-0-x on n0) was ended by signal 11 (exit code 139)",
        ),
        # Preempted pods are nobody's fault.
        (
            replace(RUN, pods=(dead(W0, 137, 1.0, is_disrupted=True), dead(W1, 1, 2.0)), outcome="Failed"),
            1,
            "worker 1 of 2 (pod train-1-x on n1) exited with code 1",
        ),
        (replace(RUN, pods=(), outcome="Failed"), 1, "the run train failed, and no pod says why"),
        # A server without workers: nobody failed before it.
        (
            replace(
                RUN, pods=(W0, dead(W1, 75, 2.0)), outcome="Failed", decisive_pod=W1.name, decisive_code=75
            ),
            75,
            "worker 1 of 2 (pod train-1-x on n1) exited with code 75",
        ),
    ],
)
def test_the_verdict(state, exit_code, first):
    verdict = judge(state)
    assert verdict.exit_code == exit_code
    assert (verdict.lines[0] if verdict.lines else None) == first


@pytest.mark.parametrize(
    "state",
    [RUN, RunState("train"), replace(RUN, is_suspended=True), replace(RUN, is_suspended=True, queue="q")],
)
def test_no_verdict_while_it_goes_on(state):
    if state.queue or not state.is_suspended:
        assert judge(state) is None
    else:
        assert judge(state) is None, "pods that still save are waited for"


def test_the_last_words_and_the_followers():
    state = replace(
        RUN,
        pods=(dead(W0, 1, 2.0), dead(W1, 1, 1.0, "Traceback:\nValueError: x\n"), W2),
        outcome="Failed",
        outcome_reason="MaxFailedIndexesExceeded",
        outcome_message="too many",
    )
    assert judge(state).lines == (
        "worker 1 of 3 (pod train-1-x on n1) exited with code 1",
        "    Traceback:",
        "    ValueError: x",
        "then worker 0 of 3 (pod train-0-x on n0) exited with code 1",
        "the cluster says: MaxFailedIndexesExceeded: too many",
    )


def waiting(pod, reason):
    return replace(pod, phase="Pending", node="", reason=reason)


LEAVING = replace(W1, phase="Terminating", deleted_at=1000.0)


@pytest.mark.parametrize(
    ("state", "lost_nodes", "told"),
    [
        (RUN, set(), []),
        (replace(RUN, pods=(W0, replace(W1, phase="Pending"))), set(), []),
        (
            replace(RUN, pods=(W0, waiting(W1, UNSCHEDULABLE), waiting(W2, UNSCHEDULABLE))),
            set(),
            [f"workers 1, 2 cannot start: {UNSCHEDULABLE}", "1 of 3 pods run and wait for the others"],
        ),
        (
            replace(RUN, pods=(waiting(W0, "ImagePullBackOff"), waiting(W1, "quota"))),
            set(),
            ["worker 0 cannot start: ImagePullBackOff", "worker 1 cannot start: quota"],
        ),
        (replace(RUN, is_suspended=True, queue="team-a"), set(), ["waits in the queue team-a"]),
        (replace(RUN, is_suspended=True), set(), ["is being stopped"]),
        (replace(RUN, pods=(W0, LEAVING)), {"n1"}, ["taint nodes n1 node.kubernetes.io/out-of-service"]),
        # Who may not see nodes is told what it looks like.
        (replace(RUN, pods=(W0, LEAVING)), None, ["which seems lost"]),
        # The node is well: the pod only takes its time.
        (replace(RUN, pods=(W0, LEAVING)), {"n7"}, []),
        (replace(RUN, pods=(W0, replace(LEAVING, deleted_at=1095.0))), {"n1"}, []),
        (replace(RUN, outcome="Failed", pods=(waiting(W0, "x"),)), set(), []),
    ],
)
def test_hints(state, lost_nodes, told):
    lines = hints(state, now=1100.0, unready_nodes=lost_nodes)
    assert len(lines) == len(told)
    for line, words in zip(lines, told, strict=True):
        assert words in line


def test_many_missing_ranks_stay_one_line():
    pods = tuple(PodState("worker", index, reason="quota") for index in range(40))
    assert hints(RunState("train", pods), 0.0) == [
        "workers 0, 1, 2, 3, 4, 5, 6, 7 and 32 more cannot start: quota"
    ]


def test_the_rows_of_the_table():
    state = replace(
        RUN, pods=(W0, dead(W1, 3), PodState("server", 0, reason="no\nroom")), earlier=(dead(W0, 1),)
    )
    told = {W0: Progress(2, 1200, 1834.4)}
    assert rows(state, told.get) == [
        ("worker 0", "n0", "Running", "1", "2", "1200", "1,834", ""),
        ("worker 1", "n1", "Failed", "0", "-", "-", "-", "exit code 3"),
        ("server 0", "-", "Missing", "0", "-", "-", "-", "no room"),
    ]
    assert all(len(row) == len(COLUMNS) for row in rows(state, told.get))


def test_what_does_not_fit_is_what_runs_well():
    lines = [(f"worker {index}", "n", "Pending" if index == 5 else "Running") for index in range(10)]
    shown, left_out = fitting(lines, 4)
    assert ([line[0] for line in shown], left_out) == (["worker 0", "worker 1", "worker 5"], 7)
    assert fitting(lines, 10) == (lines, 0)
