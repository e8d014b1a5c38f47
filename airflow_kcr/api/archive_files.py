"""Archive files: each holds what one certificate covers.

A file is gzip of JSON lines. The first one is the header: the certificate's body and digest, and once more what tells
the file's place in the chain. The others are the lines that the certificate's `content` is the SHA-256 of, to the
letter (see `verdict`). The files of a region are in one folder, named after the region and its first certificate,
so that a region that is deleted and recreated begins a chain of its own.

A file is written beside its name, forced to the disk and then renamed: whatever stands under the name is whole.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from airflow_kcr.errors import ArchiveError
from airflow_kcr.ports import Certificate
from airflow_kcr.protocol.values import RegionName

FORMAT: Final = 1
"""Of files; what reads them refuses any other."""

KIND: Final = "kcr history"
_LEVEL: Final = 6
_PREFIX: Final = 12
"""Hexadecimal digits of the first certificate's digest in the name of a folder."""


def header_of(certificate: Certificate) -> dict[str, object]:
    """Return the first line of the file of a certificate."""
    body = certificate.body
    return {
        "kind": KIND,
        "format": FORMAT,
        "region": body.get("region"),
        "number": certificate.number,
        "after": body.get("after"),
        "upto": certificate.horizon.counter,
        "previous": body.get("previous"),
        "digest": certificate.digest,
        "certificate": dict(body),
    }


@dataclass(slots=True, kw_only=True)
class Written:
    """A file on its way."""

    write: Callable[[str], object]
    """Takes its lines."""

    is_right: bool = False
    """Whether it shall stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveFolder:
    """The files of one region's certificates.

    Args:
        root: the spec's `history.archive`, which exists.
        region: whose.
        first: the digest of its first certificate.
    """

    root: Path
    region: RegionName
    first: str

    @property
    def path(self) -> Path:
        """The folder."""
        return self.root / f"{self.region}-{self.first[:_PREFIX]}"

    def path_of(self, certificate: Certificate) -> Path:
        """Return the file of a certificate."""
        return self.path / f"{certificate.number:08}.jsonl.gz"

    @contextmanager
    def writing(self, certificate: Certificate) -> Iterator[Written]:
        """Lend what writes the lines of a certificate's file.

        Once this ends, and what was written is right, the file is there and on the disk; else nothing is left of it.

        Raises:
            ArchiveError: it can't be written, there is no such folder as `root`, or there is a file of that name that
                holds something else.
        """
        final = self.path_of(certificate)
        if final.exists():  # by a call that ended before the store recorded the file
            self.check(certificate)
            yield Written(write=len)
            return
        part = final.with_name(f"{final.name}.{os.getpid()}.part")
        try:
            if not self.root.is_dir():
                raise ArchiveError(f"there is no folder {self.root} to archive to; make or mount it")
            self.path.mkdir(exist_ok=True)
            for left in self.path.glob(f"{final.name}.*.part"):  # by a process that was killed
                left.unlink(missing_ok=True)
            with part.open("xb") as raw:
                with gzip.GzipFile(filename="", mode="wb", compresslevel=_LEVEL, fileobj=raw, mtime=0) as packed:
                    packed.write(_line(header_of(certificate)))
                    written = Written(write=lambda line: packed.write(line.encode()))
                    yield written
                raw.flush()
                os.fsync(raw.fileno())
            if written.is_right:
                part.replace(final)
                for folder in (self.path, self.root):
                    _force(folder)
        except OSError as error:
            raise ArchiveError(
                f"{final} can't be written: {error.strerror or error}; the history stays in the store"
            ) from error
        finally:
            with suppress(OSError):
                part.unlink(missing_ok=True)

    def require(self, certificate: Certificate) -> None:
        """Check that the file of an archived certificate exists and has its recorded size.

        Raises:
            ArchiveError: it is missing, or was changed.
        """
        file = certificate.archive
        if file is None:
            return
        path = self.path_of(certificate)
        try:
            size = path.stat().st_size
        except OSError as error:
            raise ArchiveError(f"archive file {path} is missing: {error.strerror or error}") from None
        if size != file.size:
            _changed(path, f"it has {size} bytes; {file.size} were written")

    def lines(self, certificate: Certificate) -> Iterator[str]:
        """Yield the lines of a certificate's file, which holds what it covers if this comes to its end.

        Raises:
            ArchiveError: the file is missing, can't be read, or was changed.
        """
        path, digest = self.path_of(certificate), hashlib.sha256()
        try:
            with gzip.open(path, "rb") as packed:
                if packed.readline() != _line(header_of(certificate)):
                    _changed(path, f"its header is not that of certificate {certificate.number}")
                for line in packed:
                    digest.update(line)
                    yield line.decode()
        except FileNotFoundError:
            raise ArchiveError(f"archive file {path} is missing") from None
        except (EOFError, gzip.BadGzipFile, zlib.error, UnicodeDecodeError) as error:
            _changed(path, str(error))
        except OSError as error:
            raise ArchiveError(f"archive file {path} can't be read: {error.strerror or error}") from error
        if digest.hexdigest() != certificate.body.get("content"):
            _changed(path, f"its lines are not those that certificate {certificate.number} was made of")

    def check(self, certificate: Certificate) -> int:
        """Read the file of a certificate back, and return its size in bytes.

        Raises:
            ArchiveError: see `lines`.
        """
        self.require(certificate)
        for _ in self.lines(certificate):
            pass
        return self.path_of(certificate).stat().st_size


def _changed(path: Path, what: str) -> NoReturn:
    raise ArchiveError(f"archive file {path} was changed: {what}")


def _line(document: object) -> bytes:
    return (json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False) + "\n").encode()


def _force(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
