"""A user's own YAML laid over rendered objects."""

from collections.abc import Iterable
from typing import Any

from trireme.errors import InvalidJob

# Lists whose entries are told apart by a field: an overlay's entry changes the one of its name, or is added.
_ENTRY_NAMES = {
    "containers": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ports": "name",
    "replicatedJobs": "name",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
# Lists to which an overlay adds.
_GROWING = ("tolerations",)
# Fields that the pods' environment repeats, or that recovery is built on.
_FIXED = {
    "completionMode": "pods find their rank by it",
    "completions": "the number of pods is in every pod's environment: use --workers and --servers",
    "parallelism": "the number of pods is in every pod's environment: use --workers and --servers",
    "podReplacementPolicy": "two live pods of one rank would meet",
    "subdomain": "pods find each other by it: use --name",
}


def apply_overlays(
    objects: Iterable[dict[str, Any]], overlays: Iterable[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The objects with each overlay merged into those of its kind, and of its name where it has one.

    Mappings are merged key by key, at every depth; `null` removes a key. Lists of named things
    (containers, env, volumes, ...) are merged by name, tolerations are added, any other list and any
    value is replaced.

    Raises:
        InvalidJob: an overlay fits no object, puts a value where there is a mapping or a list, or
            changes what the run depends on, or has two entries of one name or one without in a list that is
            merged by name; the message lists every mistake.
    """
    merged = list(objects)
    mistakes: list[str] = []
    for overlay in overlays:
        fitting = [index for index, item in enumerate(merged) if _fits(overlay, item)]
        if not fitting:
            known = ", ".join(_title(item) for item in merged)
            mistakes.append(
                f"--overlay: {_title(overlay)} fits none of the objects of this run, which are {known}"
            )
        for index in fitting:
            merged[index] = _merged_mapping(merged[index], overlay, _title(merged[index]), mistakes)
    if mistakes:
        raise InvalidJob(mistakes)
    return merged


def _fits(overlay: dict[str, Any], item: dict[str, Any]) -> bool:
    metadata = overlay.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return (
        overlay.get("kind") == item["kind"]
        and overlay.get("apiVersion") in (None, item["apiVersion"])
        and name in (None, item["metadata"]["name"])
    )


def _title(item: dict[str, Any]) -> str:
    metadata = item.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return f"{item.get('kind')}/{name}" if name else str(item.get("kind"))


def _merged_mapping(
    base: dict[str, Any], overlay: dict[str, Any], path: str, mistakes: list[str]
) -> dict[str, Any]:
    result = dict(base)
    for key, value in overlay.items():
        where = f"{path}.{key}"
        if key in base and key in _FIXED and value != base[key]:
            mistakes.append(f"--overlay: {where} is {base[key]!r} and cannot be {value!r}: {_FIXED[key]}")
        elif value is None:
            result.pop(key, None)
        else:
            result[key] = _merged(base.get(key), value, key, where, mistakes)
    return result


def _merged(base: Any, overlay: Any, key: str, where: str, mistakes: list[str]) -> Any:
    """The overlay's value laid over the base's, which is None where there is none."""
    if isinstance(overlay, dict):
        if base is None or isinstance(base, dict):
            return _merged_mapping(base or {}, overlay, where, mistakes)
    elif isinstance(overlay, list):
        if base is None or isinstance(base, list):
            return _merged_list(base or [], overlay, key, where, mistakes)
    elif not isinstance(base, dict | list):
        return overlay
    mistakes.append(f"--overlay: {where} is a {_kind(base)}, and the overlay has a {_kind(overlay)} there")
    return base


def _merged_list(base: list[Any], overlay: list[Any], key: str, where: str, mistakes: list[str]) -> list[Any]:
    if key in _GROWING:
        return base + [entry for entry in overlay if entry not in base]
    field = _ENTRY_NAMES.get(key)
    if field is None or not all(isinstance(entry, dict) for entry in overlay):
        return overlay
    names = [entry.get(field) for entry in overlay]
    for name in dict.fromkeys(names):
        if name is None:
            mistakes.append(f"--overlay: an entry of {where} has no {field}, by which entries are told apart")
        elif names.count(name) > 1:
            mistakes.append(f"--overlay: {where} has {names.count(name)} entries whose {field} is {name!r}")
    result = list(base)
    places = {entry[field]: place for place, entry in enumerate(base) if field in entry}
    for name, entry in zip(names, overlay, strict=True):
        if name in places:
            place = places[name]
            result[place] = _merged_mapping(result[place], entry, f"{where}[{name}]", mistakes)
        else:
            result.append(_merged_mapping({}, entry, where, mistakes))
    return result


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return "mapping"
    return "list" if isinstance(value, list) else "value"
