"""Models in cloud storage, in the catalog beside local ones."""

from dataclasses import dataclass
from pathlib import Path

from halimede.models.repository import Fingerprint, FoundModel, scan
from tests.models.fakes import repository


@dataclass(frozen=True)
class Elsewhere:
    folder: Path

    def fetch(self) -> None:
        raise AssertionError("a catalogue fetches nothing")

    def look(self) -> tuple[Fingerprint, int]:
        raise AssertionError("and looks at nothing")


def test_models_of_both_places_are_found(tmp_path: Path) -> None:
    here = str(repository(tmp_path, {"here": "", "both": ""}))
    away = {"away": Elsewhere(Path("/copy/away")), "both": Elsewhere(Path("/copy/both"))}
    catalog = scan([here, "s3://bucket"], remote={"s3://bucket": away}.get)
    assert catalog.models == {
        "here": FoundModel("here", tmp_path / "here"),
        "away": FoundModel("away", Path("/copy/away")),
    }
    assert catalog.duplicates == ("both",)
    assert catalog.models["away"].remote is away["away"]
    assert catalog.models["here"].remote is None


def test_models_of_both_places_in_their_namespaces(tmp_path: Path) -> None:
    here = str(repository(tmp_path, {"both": ""}))
    away = {"both": Elsewhere(Path("/copy/both"))}
    catalog = scan([here, "s3://bucket"], namespaces=True, remote={"s3://bucket": away}.get)
    assert {found.namespace: found.folder for found in catalog.named("both")} == {
        here: tmp_path / "both",
        "s3://bucket": Path("/copy/both"),
    }
