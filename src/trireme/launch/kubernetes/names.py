"""The names Kubernetes takes: each check returns what is wrong, in words, with what to type instead."""

import re
from dataclasses import dataclass

MAX_LABEL = 63
MAX_SUBDOMAIN = 253
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")

_SERVICE_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_IMAGE = re.compile(
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]+)?/)?"  # registry.example:5000/
    r"[a-z0-9]+(?:(?:[.]|_{1,2}|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[.]|_{1,2}|-+)[a-z0-9]+)*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?"
    r"(?:@[a-z0-9]+:[0-9a-f]{32,128})?"
)


@dataclass(frozen=True)
class Toleration:
    """A taint that pods may be placed in spite of. An empty effect means every effect, no value any value."""

    key: str
    value: str | None = None
    effect: str = ""

    def to_object(self) -> dict[str, str]:
        """The entry for `tolerations` of a pod."""
        entry = {"key": self.key, "operator": "Exists" if self.value is None else "Equal"}
        if self.value is not None:
            entry["value"] = self.value
        return entry | ({"effect": self.effect} if self.effect else {})


def run_name_problems(name: str, longest_ending: str) -> list[str]:
    """What is wrong with the name of a run.

    The name becomes a Service, so it begins with a letter. With an ending it becomes the host name of
    each pod, which has at most 63 characters; `longest_ending` is the longest of those endings.
    """
    if not name:
        return ["the run has no name: add --name train"]
    longest = MAX_LABEL - len(longest_ending)
    if not _SERVICE_NAME.fullmatch(name):
        return [
            f"--name {name!r} is no name for a Service: expected lower-case letters, digits and '-', a "
            f"letter first and no '-' last, like --name {_resembling(name, longest)}"
        ]
    if len(name) > longest:
        return [
            f"--name {name} has {len(name)} characters: pods are called NAME{longest_ending}, which may have "
            f"{MAX_LABEL}, so the name may have {longest}, like --name {name[:longest].rstrip('-')}"
        ]
    return []


def label_problems(option: str, text: str) -> list[str]:
    """What is wrong with a name that must be one DNS label, as namespaces and queues have."""
    if _LABEL.fullmatch(text) and len(text) <= MAX_LABEL:
        return []
    return [
        f"{option} {text!r}: expected at most {MAX_LABEL} lower-case letters, digits and '-', beginning and "
        "ending with a letter or digit"
    ]


def subdomain_problems(option: str, text: str) -> list[str]:
    """What is wrong with the name of an object, such as a claim: DNS labels joined by dots."""
    if len(text) <= MAX_SUBDOMAIN and all(_LABEL.fullmatch(part) for part in text.split(".")):
        return []
    return [
        f"{option} {text!r}: expected at most {MAX_SUBDOMAIN} lower-case letters, digits, '-' and '.', each "
        "part between dots beginning and ending with a letter or digit"
    ]


def image_problems(image: str) -> list[str]:
    """What is wrong with the name of a container image."""
    if not image:
        return ["no image is named: add --image REGISTRY/NAME:TAG"]
    if _IMAGE.fullmatch(image):
        return []
    path = image.partition(":")[0] if "/" not in image else image.rpartition("/")[0]
    hint = " (only the registry and the tag may have capitals)" if path != path.lower() else ""
    return [f"--image {image!r} is no name of an image{hint}: expected --image REGISTRY/NAME:TAG"]


def parse_node_selector(text: str) -> tuple[str, str]:
    """The label and the value in `label=value`. Raises ValueError with what to type."""
    key, equals, value = text.partition("=")
    if not equals or not _is_label_key(key) or not _is_label_value(value):
        raise ValueError(
            f"--node-selector {text!r}: expected a node's label and its value, like "
            "--node-selector topology.kubernetes.io/zone=europe-west4-a"
        )
    return key, value


def parse_toleration(text: str) -> Toleration:
    """The toleration in `key`, `key=value`, `key:effect` or `key=value:effect`: `kubectl taint` writes so.

    Raises ValueError with what to type.
    """
    taint, _, effect = text.partition(":")
    key, equals, value = taint.partition("=")
    right_effect = effect in EFFECTS or (not effect and ":" not in text)
    if _is_label_key(key) and _is_label_value(value) and right_effect:
        return Toleration(key, value if equals else None, effect)
    meant = {known.lower(): known for known in EFFECTS}.get(effect.lower())
    example = f"{taint}:{meant}" if meant else "dedicated=training:NoSchedule"
    raise ValueError(
        f"--toleration {text!r}: expected KEY, KEY=VALUE, KEY:EFFECT or KEY=VALUE:EFFECT, where EFFECT "
        f"is one of {', '.join(EFFECTS)}, like --toleration {example}"
    )


def _is_label_key(key: str) -> bool:
    """Whether this is a label's key: a name, or a DNS prefix, a slash and a name."""
    prefix, slash, name = key.rpartition("/")
    if slash and subdomain_problems("", prefix):
        return False
    return bool(name) and _is_label_value(name)


def _is_label_value(value: str) -> bool:
    return len(value) <= MAX_LABEL and _LABEL_VALUE.fullmatch(value) is not None


def _resembling(name: str, longest: int) -> str:
    """A name that Kubernetes takes, as near to the given one as a rule can be."""
    letters = re.sub(r"[^a-z0-9]+", "-", name.lower()).lstrip("-0123456789")
    return letters[:longest].strip("-") or "train"
