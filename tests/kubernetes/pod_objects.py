"""Pods as the API server describes them."""

from tests.kubernetes.job_controller import INDEX_KEY


def pod_object(
    index, *, role="worker", name="", created="2026-10-01T10:00:00Z", deleted="", node="n0", **status
):
    metadata = {
        "name": name or f"train-{index}-abcde",
        "creationTimestamp": created,
        "labels": {INDEX_KEY: str(index), "trireme.dev/run": "train", "trireme.dev/role": role},
    }
    if deleted:
        metadata["deletionTimestamp"] = deleted
    return {"metadata": metadata, "spec": {"nodeName": node}, "status": status}
