"""An object store and a catalog as Amazon has them: moto's server, which speaks S3 and Glue, in a process."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

from pyarrow.fs import S3FileSystem
from pyiceberg.catalog.glue import GlueCatalog

from airflow_kcr.embedded.processes import free_port
from airflow_kcr.sinks.delta.table import DeltaTable
from airflow_kcr.sinks.files.folder import Folder
from airflow_kcr.sinks.files.layout import FileTarget
from airflow_kcr.sinks.iceberg.table import IcebergTable
from airflow_kcr.sinks.tables.owned import OwnedTable, TableChange, folder_of
from tests.support.server_process import listening
from tests.support.table_files import DeltaFolder, Warehouse

BUCKET: Final = "lake"
REGION: Final = "us-east-1"
KEYS: Final = ("key", "secret")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStore:
    """A store that runs."""

    uri: str

    @property
    def files(self) -> S3FileSystem:
        """What is in it, as a program that isn't ours reaches it."""
        return S3FileSystem(
            access_key=KEYS[0],
            secret_key=KEYS[1],
            region=REGION,
            endpoint_override=self.uri,
            allow_bucket_creation=True,
        )

    def put(self, file: Path, uri: str) -> None:
        """Write a file of this machine into it."""
        place = urlsplit(uri)
        with self.files.open_output_stream(f"{place.netloc}{place.path}") as stream:
            stream.write(file.read_bytes())


@contextmanager
def object_store(folder: Path) -> Iterator[ObjectStore]:
    """Lend a store with a bucket; it is gone with its process."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with listening(command, port, folder / "store.log"):
        made = ObjectStore(uri=f"http://127.0.0.1:{port}")
        made.files.create_dir(BUCKET)
        yield made


class _Sending(OwnedTable[Any]):
    """A table whose files are written on this machine, and put into the store before it is committed to."""

    store: ObjectStore

    def _commit(self, noted: Any, change: TableChange) -> Any:  # noqa: ANN401 (of any format)
        where = folder_of(self._place.location(), self.target.owner)
        for file in () if change.manifest is None else change.manifest.files:
            self.store.put(Path(self.folder.uri) / file.path, f"{where}/{file.path}")
        return super()._commit(noted, change)  # type: ignore[safe-super]


class _SendingDelta(_Sending, DeltaTable):
    pass


class _SendingIceberg(_Sending, IcebergTable):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaInStore(DeltaFolder):
    """A Delta table in an object store."""

    store: ObjectStore
    name: str

    @property
    def uri(self) -> str:
        """Where it is."""
        return f"s3://{BUCKET}/{self.name}"

    @property
    def options(self) -> dict[str, str]:
        """What opens it."""
        return {
            "AWS_ENDPOINT_URL": self.store.uri,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": KEYS[0],
            "AWS_SECRET_ACCESS_KEY": KEYS[1],
        }

    def here(self, uri: str) -> Path:
        """Where files of the table are on this machine, before they are put into the store."""
        return self.root / uri.rpartition(f"/{self.name}/")[2]

    def opened(self, target: FileTarget, folder: Folder) -> DeltaTable:
        """The table as a process of a sink has it."""
        made = _SendingDelta(target, self.place(), folder)
        made.store = self.store
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class GlueWarehouse(Warehouse):
    """A table of Glue, in an object store."""

    commit_point: ClassVar[tuple[type, str]] = (GlueCatalog, "commit_table")

    store: ObjectStore

    @property
    def options(self) -> dict[str, str]:
        """What opens the catalog."""
        return {
            "type": "glue",
            "glue.endpoint": self.uri,
            "client.region": REGION,
            "client.access-key-id": KEYS[0],
            "client.secret-access-key": KEYS[1],
            "s3.endpoint": self.uri,
            "warehouse": f"s3://{BUCKET}/warehouse",
        }

    def here(self, uri: str) -> Path:
        """Where files of the table are on this machine, before they are put into the store."""
        return self.root / uri.rpartition(f"/{self.name.partition('.')[2]}/")[2]

    def opened(self, target: FileTarget, folder: Folder) -> IcebergTable:
        """The table as a process of a sink has it."""
        made = _SendingIceberg(target, self.named(), folder)
        made.store = self.store
        return made


def delta_in_store(root: Path, store: ObjectStore) -> DeltaInStore:
    """Return a Delta table of its own in an object store.

    Args:
        root: where files are before they are put into the store.
        store: which one.
    """
    made = DeltaInStore(root=root, store=store, name=f"delays_{uuid.uuid4().hex}")
    made.create()
    return made


def glue_warehouse(root: Path, store: ObjectStore) -> GlueWarehouse:
    """Return a table of its own in Glue; otherwise as `delta_in_store`."""
    made = GlueWarehouse(root=root, uri=store.uri, store=store, name=f"db.delays_{uuid.uuid4().hex}")
    made.create()
    return made
