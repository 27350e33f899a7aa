"""A set of Redfish resources, as bytes and as objects.

The body of a page is one of: one resource (JSON), a list of resources (JSON), one resource
per line, or a ``.tar``/``.tar.gz`` of a tree laid out by ``@odata.id``. A walk writes one
resource per line, with a first line about the walk itself (:data:`WALK_TYPE`).
"""

from __future__ import annotations

import io
import json
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Resource = dict[str, Any]

WALK_TYPE = "#RackpulseWalk"
MAX_RESOURCES = 20_000
MAX_RESOURCE_BYTES = 4_000_000
MAX_BYTES = 64_000_000


@dataclass(slots=True)
class Tree:
    """Resources by ``@odata.id``.

    Attributes:
        fresh: resources that were read for this page, in order; their rows are made.
        context: resources read earlier, kept for what they say about others.
        manager_id: id that the operator gave the manager.
        refused: reasons why parts of the body could not be read.
        missing: paths that the walk could not read, with the reason.
    """

    fresh: dict[str, Resource] = field(default_factory=dict)
    context: dict[str, Resource] = field(default_factory=dict)
    manager_id: str | None = None
    refused: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)

    def get(self, path: str) -> Resource | None:
        """A resource of either kind."""
        return self.fresh.get(path) or self.context.get(path)

    def every(self, kind: str) -> Iterator[Resource]:
        """All resources of a type, fresh ones first."""
        for path, resource in [*self.fresh.items(), *self.context.items()]:
            if kind_of(resource) == kind and (resource is self.get(path)):
                yield resource


def kind_of(resource: Resource) -> str:
    """Type without name space and version: ``#Pump.v1_2_0.Pump`` is ``Pump``."""
    kind = resource.get("@odata.type")
    return kind.lstrip("#").split(".", 1)[0] if isinstance(kind, str) else ""


def normal(path: object) -> str:
    """A path as it is compared: without a trailing slash; empty for anything else."""
    if not isinstance(path, str) or not path.startswith("/"):
        return ""
    return path.split("#", 1)[0].rstrip("/") or "/"


def link(value: object) -> str:
    """The path that a link ``{"@odata.id": …}`` leads to; empty where it is none."""
    return normal(value.get("@odata.id")) if isinstance(value, dict) else ""


def links(value: object) -> list[str]:
    """Paths of a list of links."""
    return [path for entry in value if (path := link(entry))] if isinstance(value, list) else []


def parse(body: bytes) -> Tree:
    """Read a page's body. Nothing is raised for bad input: see :attr:`Tree.refused`."""
    tree = Tree()
    if body[:2] == b"\x1f\x8b" or body[257:262] == b"ustar":
        for name, text in _members(body, tree):
            _add(tree, placed(_decode(text, tree), name))
        return tree
    whole = _decode(body, None)
    if whole is None and b"\n" in body:
        for line in body.splitlines():
            if line.strip():
                _add(tree, _decode(line, tree))
        return tree
    if whole is None:
        tree.refused.append("not_json")
    elif isinstance(whole, list):
        for entry in whole[:MAX_RESOURCES]:
            _add(tree, entry)
    else:
        _add(tree, whole)
    return tree


def _decode(text: bytes, tree: Tree | None) -> object:
    if len(text) > MAX_BYTES:
        if tree is not None:
            tree.refused.append("too_large")
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        if tree is not None:
            tree.refused.append("not_json")
        return None


def _add(tree: Tree, resource: object) -> None:
    if resource is None:
        return
    if not isinstance(resource, dict):
        tree.refused.append("not_a_resource")
        return
    kind = resource.get("@odata.type")
    if kind == WALK_TYPE:
        _about_walk(tree, resource)
        return
    if len(tree.fresh) + len(tree.context) >= MAX_RESOURCES:
        tree.refused.append("too_many_resources")
        return
    path = normal(resource.get("@odata.id"))
    if not path or not kind_of(resource):
        tree.refused.append("not_a_resource")
        return
    into = tree.context if resource.pop("@rackpulse.context", False) else tree.fresh
    into[path] = resource


def _about_walk(tree: Tree, about: Resource) -> None:
    manager = about.get("manager_id")
    tree.manager_id = manager if isinstance(manager, str) and manager else None
    missing = about.get("missing")
    if isinstance(missing, dict):
        tree.missing.update({str(path): str(why) for path, why in missing.items()})


def placed(resource: object, name: str) -> object:
    """A resource with the path that it was found at: that wins over what it says itself."""
    _, found, rest = name.partition("redfish/v1")
    if found and name.endswith("/index.json") and isinstance(resource, dict):
        resource["@odata.id"] = normal("/redfish/v1" + rest.removesuffix("/index.json"))
    return resource


def _members(body: bytes, tree: Tree) -> Iterator[tuple[str, bytes]]:
    total = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(body), mode="r:*") as archive:
            for count, member in enumerate(archive):
                if not member.isfile() or not member.name.endswith(".json"):
                    continue
                total += member.size
                if member.size > MAX_RESOURCE_BYTES or total > MAX_BYTES or count > MAX_RESOURCES:
                    tree.refused.append("too_large")
                    return
                stream = archive.extractfile(member)
                if stream is not None:
                    yield member.name, stream.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error, ValueError):
        tree.refused.append("not_an_archive")


def dump(
    resources: Iterable[Resource],
    *,
    context: Iterable[Resource] = (),
    manager_id: str | None = None,
    missing: dict[str, str] | None = None,
) -> bytes:
    """Resources as a page's body, one per line."""
    about = {"@odata.type": WALK_TYPE, "manager_id": manager_id, "missing": missing or {}}
    lines = [json.dumps(about)]
    lines += [json.dumps(resource) for resource in resources]
    lines += [json.dumps({**resource, "@rackpulse.context": True}) for resource in context]
    return "\n".join(lines).encode()


def read_folder(folder: Path) -> bytes:
    """The tree of a folder that is laid out by ``@odata.id``, as a page's body."""
    resources = []
    for path in sorted(folder.rglob("*.json"))[:MAX_RESOURCES]:
        if path.stat().st_size <= MAX_RESOURCE_BYTES:
            try:
                resource = placed(json.loads(path.read_bytes()), path.as_posix())
            except (ValueError, RecursionError):
                continue
            if isinstance(resource, dict):
                resources.append(resource)
    return dump(resources)
