"""`python -m tests.manifests`: holds deploy/kubernetes against the schemas of Kubernetes, KEDA and kustomize, offline.

Each file is checked as it stands; where kubectl or kustomize is at hand, what the overlays make of them too.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # it carries no types
import yaml
from jsonschema import Draft202012Validator, ValidationError
from kubernetes_validate import utils as of_kubernetes

TOP = Path(__file__).parent.parent
FOLDER = TOP / "deploy" / "kubernetes"
SCHEMAS = TOP / "tests" / "integration" / "deploy"
OWN_KINDS = {
    "ScaledObject": "keda",
    "PodMonitor": "podmonitor",
    "Kustomization": "kustomization",
    "Component": "kustomization",
}
VERSIONS = ("1.30", kubernetes_validate.latest_version())
"""The oldest Kubernetes that has all we use (preStop.sleep), and the newest that there is a schema of."""
MAX_S = 60
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the one in C is ten times as fast; a wheel has it

Manifest = dict[str, Any]

of_kubernetes.schema_contents = cache(
    of_kubernetes.schema_contents
)  # it reads its 2 MB of definitions for each manifest


def faults(folder: Path = FOLDER) -> list[str]:
    """What is wrong with the manifests in this folder, a line each."""
    found = [line for path in kustomizations(folder) for line in _faults_of_kustomization(path)]
    found += [
        line
        for path in files(folder)
        for manifest in read(path)
        for line in faults_of(manifest, str(path.relative_to(folder)))
    ]
    if renderer() and not found:
        for overlay in overlays(folder):
            found += [line for manifest in render(overlay) for line in faults_of(manifest, f"{overlay.name}, rendered")]
    return found


def kustomizations(folder: Path = FOLDER) -> list[Path]:
    """The kustomizations in this folder."""
    return sorted(folder.rglob("kustomization.yaml"))


def files(folder: Path = FOLDER) -> list[Path]:
    """The files of manifests: those that a kustomization names, and the example of secrets."""
    named = (path.parent / name for path in kustomizations(folder) for name in _document(path).get("resources", []))
    return sorted({path.resolve() for path in named if path.is_file()} | set(folder.resolve().glob("*.example.yaml")))


def overlays(folder: Path = FOLDER) -> list[Path]:
    """The folders that are applied."""
    return sorted(path.parent for path in (folder / "overlays").glob("*/kustomization.yaml"))


def read(path: Path) -> list[Manifest]:
    """The documents in a file."""
    return [document for document in yaml.load_all(path.read_text(), LOADER) if document]


def renderer() -> list[str] | None:
    """The command that renders an overlay; None if this machine has none."""
    for words in (["kustomize", "build"], ["kubectl", "kustomize"]):
        if shutil.which(words[0]):
            return words
    return None


@cache
def render(overlay: Path) -> list[Manifest]:
    """What an overlay applies. Raises RuntimeError with what the renderer said."""
    words = renderer()
    assert words is not None
    done = subprocess.run([*words, str(overlay)], capture_output=True, text=True, timeout=MAX_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{overlay.name}: {done.stderr.strip()}")
    return [document for document in yaml.load_all(done.stdout, LOADER) if document]


def faults_of(manifest: Manifest, where: str, *, is_patch: bool = False) -> Iterator[str]:
    """What is wrong with one manifest."""
    place = f"{where}: {manifest.get('kind', '?')} {manifest.get('metadata', {}).get('name', '')}".rstrip()
    yield from (f"{place}: {fault}" for fault in _faults_of_text(json.dumps(manifest, default=str), is_patch))


@cache
def _faults_of_text(text: str, is_patch: bool) -> tuple[str, ...]:
    """What is wrong with a manifest, which is many times the same: as a file, in each overlay, and in each copy with a mistake."""
    manifest = json.loads(text)
    kind = manifest.get("kind", "?")
    if kind in OWN_KINDS:
        found = [_said(error) for error in _validator(OWN_KINDS[kind]).iter_errors(manifest)]
        if kind == "ScaledObject" and not is_patch and "scaleTargetRef" not in manifest.get("spec", {}):
            found.append("spec: scaleTargetRef is missing")
        return tuple(found)
    found = []
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(manifest, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            found.append(f"{_said(error)} (Kubernetes {version})")
        except kubernetes_validate.SchemaNotFoundError as error:
            found.append(error.message)
    return tuple(found)


def _faults_of_kustomization(path: Path) -> Iterator[str]:
    document = _document(path)
    where = str(path.parent.name)
    yield from faults_of(document, where)
    patches = [patch["path"] for patch in document.get("patches", []) if "path" in patch]
    generated = [name for each in document.get("configMapGenerator", []) for name in generated_from(each)]
    for name in (*document.get("resources", []), *document.get("components", []), *patches, *generated):
        target = path.parent / name
        if not (target.is_file() or (target / "kustomization.yaml").is_file()):
            yield f"{where}: there is no {name}"
        elif name in patches:
            for patch in read(target):
                if isinstance(patch, dict):  # else it is a list of operations, which the renderer tries
                    yield from faults_of(patch, f"{where}/{name}", is_patch=True)


def generated_from(generator: Manifest) -> list[str]:
    """The files that a generated ConfigMap has its values from."""
    return [*generator.get("files", []), *generator.get("envs", [])]


def _document(path: Path) -> Manifest:
    document: Manifest = yaml.load(path.read_text(), LOADER)
    return document


@cache
def _validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads((SCHEMAS / f"{name}.json").read_text()))


def _said(error: ValidationError) -> str:
    place = ".".join(map(str, error.absolute_path))
    return f"{place}: {error.message}"[:300]


def main() -> int:
    """Tell the faults, if there are any."""
    try:
        found = faults()
    except RuntimeError as error:
        found = [str(error)]
    rendered = "" if renderer() else ", not rendered: neither kubectl nor kustomize is here"
    said = "\n".join(found) or f"Manifests are sound: {len(files())} files, {len(overlays())} overlays{rendered}"
    sys.stdout.write(f"{said}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
