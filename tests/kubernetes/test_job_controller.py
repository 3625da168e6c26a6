"""The stand-in for the Job controller does what a real one of version 1.36 was seen to do with these manifests."""

import itertools

import pytest

from tests.kubernetes.job_controller import INDEX_KEY, History, reconcile
from tests.kubernetes.jobs import job
from trireme.launch.kubernetes.render import render


class Cluster:
    """A Job and its pods, under a clock that the test turns."""

    def __init__(self, **options):
        found = [one for one in render(job(**options)) if one["kind"] == "Job"]
        self.job = found[0]
        self.job["metadata"] |= {"uid": "1", "namespace": "default"}
        self.pods, self.history, self.now = {}, History(), 0.0
        self._uids = itertools.count()
        self.round()

    def round(self):
        decision = reconcile(self.job, [*self.pods.values()], self.history, self.now)
        self.job["status"] = decision.status
        for name in decision.delete:
            self.pods[name]["metadata"]["deletionTimestamp"] = "now"
        for pod in decision.create:
            pod["metadata"]["uid"] = str(next(self._uids))
            pod["status"] = {"phase": "Running"}
            self.pods[pod["metadata"]["name"]] = pod
        return decision

    def running(self, index):
        return [
            pod
            for pod in self.pods.values()
            if pod["metadata"]["labels"][INDEX_KEY] == str(index) and pod["status"]["phase"] == "Running"
        ]

    def end(self, index, code, **status):
        (pod,) = self.running(index)
        ended = [{"name": "main", "state": {"terminated": {"exitCode": code}}}]
        pod["status"] = {"phase": "Failed" if code else "Succeeded", "containerStatuses": ended, **status}
        return self.round()

    def replaced_after(self, index):
        """Seconds until there is a new pod of the index."""
        began, wake_s = self.now, self.round().wake_s
        if wake_s is not None:
            self.now += wake_s
            self.round()
        assert len(self.running(index)) == 1
        return self.now - began

    @property
    def outcome(self):
        return [(one["type"], one["reason"]) for one in self.job["status"]["conditions"]]


def test_a_pod_for_each_index():
    cluster = Cluster(workers=4)
    assert [len(cluster.running(index)) for index in range(5)] == [1, 1, 1, 1, 0]
    pod = cluster.running(3)[0]
    assert pod["spec"]["hostname"] == "train-3"
    assert pod["spec"]["containers"][0]["env"][-1]["name"] == "JOB_COMPLETION_INDEX"


def test_a_rank_that_fails_is_replaced_later_each_time_and_others_are_not_touched():
    cluster = Cluster(workers=4)
    others = [cluster.running(index) for index in (0, 1, 3)]
    waits = []
    for _ in range(3):
        cluster.end(2, 1)
        waits.append(cluster.replaced_after(2))
    assert waits == [10.0, 20.0, 40.0]
    assert [cluster.running(index) for index in (0, 1, 3)] == others
    cluster.end(2, 1)
    assert cluster.outcome == [("Failed", "MaxFailedIndexesExceeded")]
    assert cluster.job["status"]["failedIndexes"] == "2"


def test_ranks_that_only_lost_a_peer_come_back_together_and_do_not_count():
    cluster = Cluster(workers=4)
    for index in range(4):
        cluster.end(index, 75)
    assert cluster.replaced_after(0) == 10.0
    assert all(cluster.running(index) for index in range(4))
    assert cluster.job["status"]["failed"] == 0


def test_a_final_exit_code_ends_the_job_with_the_message_that_names_the_pod():
    cluster = Cluster(workers=2)
    name = cluster.running(1)[0]["metadata"]["name"]
    cluster.end(1, 64)
    (condition,) = cluster.job["status"]["conditions"]
    assert condition["message"] == (
        f"Container main for pod default/{name} failed with exit code 64 matching FailJob rule at index 0"
    )
    cluster.round()
    assert "deletionTimestamp" in cluster.running(0)[0]["metadata"]


def test_a_disruption_is_free():
    cluster = Cluster(workers=2)
    cluster.end(0, 137, conditions=[{"type": "DisruptionTarget", "status": "True"}])
    assert cluster.replaced_after(0) == 10.0
    assert cluster.job["status"]["failed"] == 0


def test_exit_code_0_on_a_signal_would_end_the_rank_for_ever():
    cluster = Cluster(workers=2)
    cluster.end(0, 0)
    cluster.now += 1000
    cluster.round()
    assert cluster.running(0) == [] and cluster.job["status"]["completedIndexes"] == "0"


def test_no_second_pod_of_a_rank_while_the_first_terminates():
    cluster = Cluster(workers=2)
    cluster.running(1)[0]["metadata"]["deletionTimestamp"] = "now"
    cluster.now += 1000
    cluster.round()
    assert len(cluster.running(1)) == 1


@pytest.mark.parametrize(("servers", "needed"), [(0, [0, 1]), (1, [0])])
def test_the_end(servers, needed):
    cluster = Cluster(workers=2, servers=servers)
    for index in needed:
        assert cluster.outcome == []
        cluster.end(index, 0)
    assert cluster.outcome == [("Complete", "SuccessPolicy" if servers else "CompletionsReached")]


def test_suspended():
    cluster = Cluster(workers=2)
    cluster.job["spec"]["suspend"] = True
    assert len(cluster.round().delete) == 2
    for index in range(2):
        cluster.end(index, 143)
    assert cluster.running(0) == cluster.running(1) == []
