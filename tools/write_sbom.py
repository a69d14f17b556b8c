"""Write the bill of materials (CycloneDX) of a release beside its wheel: ``python -m tools.write_sbom dist``.

It describes the wheel and the sdist by their hashes, and what they depend on, in the releases that the image ships.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.pins import FILE, PROJECT, Pin, pins

ROOT = Path(__file__).parents[1]


def main(folder: Path) -> None:
    """Write one file for the wheel and the sdist in a folder, named after the wheel."""
    [wheel], [sdist] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = written(bill(project, pins(FILE.read_text(encoding="utf-8")), wheel=wheel, sdist=sdist))
    path = wheel.with_name("-".join(wheel.name.split("-")[:2]) + ".cdx.json")
    path.write_text(text + "\n", encoding="utf-8")
    print(path)


def bill(project: Mapping[str, Any], pinned: Sequence[Pin], *, wheel: Path, sdist: Path) -> Bom:
    """The bill of materials of a project, whose ``pinned`` dependencies are complete."""
    released = Component(
        type=ComponentType.LIBRARY,
        name=project["name"],
        version=project["version"],
        description=project["description"],
        licenses=[LicenseFactory().make_from_string(project["license"])],
        purl=_purl(project["name"], project["version"]),
        bom_ref=project["name"],
        hashes=[_hash(wheel)],
        external_references=[
            ExternalReference(type=ExternalReferenceType.VCS, url=XsUri(project["urls"]["Source"])),
            *(
                ExternalReference(type=ExternalReferenceType.DISTRIBUTION, url=XsUri(path.name), hashes=[_hash(path)])
                for path in (wheel, sdist)
            ),
        ],
    )
    needed = _without_extras(project, pinned)
    components = {
        pin.name: Component(
            type=ComponentType.LIBRARY,
            name=pin.name,
            version=pin.version,
            purl=_purl(pin.name, pin.version),
            bom_ref=pin.name,
            scope=ComponentScope.REQUIRED if pin.name in needed else ComponentScope.OPTIONAL,
        )
        for pin in pinned
    }
    bom = Bom(components=components.values())
    bom.metadata.component = released
    for name, component in {PROJECT: released, **components}.items():
        bom.register_dependency(component, [components[pin.name] for pin in pinned if name in pin.needed_by])
    return bom


def written(bom: Bom) -> str:
    """The bill as JSON. Raises ValueError, if it is not valid by the schema of CycloneDX."""
    text = JsonV1Dot6(bom).output_as_string(indent=1)
    if fault := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        raise ValueError(f"the bill of materials is not valid by CycloneDX 1.6: {fault}")
    return text


def _without_extras(project: Mapping[str, Any], pinned: Sequence[Pin]) -> set[str]:
    """The names of what is installed without any extra."""
    found: set[str] = set()
    new = {str(canonicalize_name(Requirement(text).name)) for text in project["dependencies"]}
    while new:
        found |= new
        new = {pin.name for pin in pinned if found & set(pin.needed_by)} - found
    return found


def _purl(name: str, version: str) -> PackageURL:
    return PackageURL(type="pypi", name=name, version=version)


def _hash(path: Path) -> HashType:
    return HashType(alg=HashAlgorithm.SHA_256, content=sha256(path.read_bytes()).hexdigest())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
