"""Jobs that together use every option of `trireme render`; their manifests lie in `golden/`.

`python -m tests.kubernetes.jobs` renders them again, after a change that is meant to change them.
"""

import pathlib
from typing import Any

from trireme.launch.kubernetes.overlay import apply_overlays
from trireme.launch.kubernetes.render import header, render
from trireme.launch.kubernetes.source import Source
from trireme.launch.kubernetes.spec import KubernetesJob
from trireme.launch.kubernetes.yaml_text import read_overlay, to_yaml

GOLDEN = pathlib.Path(__file__).parent / "golden"
OVERLAY = GOLDEN / "overlay.txt"
SCRIPT = b"import keras\n\nmodel = keras.Sequential()  \nif model:\n\tprint('{{ epochs }}')\n"


def job(**options: Any) -> KubernetesJob:
    """A job with as little said as can be, but for the given options."""
    source = Source("train.py", ("--epochs=3",), files=(("train.py", SCRIPT),))
    return KubernetesJob(**{"name": "train", "image": "registry.example/train:1", "source": source} | options)


FOLDER = Source(
    "train.py",
    ("--data", "$(HOME)/data"),
    is_folder=True,
    files=(
        ("digits/__init__.py", b""),
        ("digits/model.py", "NAME = 'Größe'\n".encode()),
        ("digits/weights.bin", b"\x00\xff\xfe"),
        ("train.py", b"from digits.model import NAME"),
    ),
)

JOBS = {
    "smallest": job(),
    "four_workers_one_gpu": job(workers=4, gpus=1, cpu="4", memory="16Gi", backup_claim="train-ckpt"),
    "two_servers_four_workers": job(workers=4, servers=2, gpus=1, cpu="4", memory="16Gi"),
    "jobset": job(workers=4, gpus=1, cpu="4", memory="16Gi", backup="gs://bucket/train", jobset=True),
    "jobset_with_servers_in_a_queue": job(workers=4, servers=2, queue="team-a", jobset=True),
    "folder_on_tensorflow_four_gpus": job(workers=2, gpus=4, memory="64Gi", source=FOLDER),
    "module_on_jax_everywhere": job(
        workers=12,
        gpus=8,
        backend="jax",
        source=Source("digits.train", ("-v",), is_module=True),
        namespace="research",
        node_selector=("nvidia.com/gpu.product=NVIDIA-H200", "pool=spot"),
        tolerations=("spot", "dedicated=training:NoSchedule"),
        priority_class="training-high",
        queue="team-a",
        grace_s=15,
        run_id="3f2a9c1e",
    ),
}


def manifest(name: str) -> str:
    """What `trireme render` prints for a job of `JOBS`, or for one of them under the overlay."""
    if name == "overlay":
        objects = apply_overlays(render(JOBS["two_servers_four_workers"]), read_overlay(str(OVERLAY)))
        return to_yaml(objects, header(JOBS["two_servers_four_workers"]))
    return to_yaml(render(JOBS[name]), header(JOBS[name]))


NAMES = [*JOBS, "overlay"]

if __name__ == "__main__":
    for each in NAMES:
        (GOLDEN / f"{each}.yaml").write_text(manifest(each), encoding="utf-8")
