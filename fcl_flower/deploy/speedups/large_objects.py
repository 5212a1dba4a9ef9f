"""A SuperLink whose large objects lie in files.

It replaces Flower's store of what clients and runs hand over. Flower (1.41) has it in
its database, 5 MB a row, beside a count that changes. Each change writes the row anew:
a message of 300 MB goes to the disk three times, of these twice at once as it is
deleted. Others wait for that, and fail after five seconds: "database is locked". The
database never gives back what it has taken. A file is written once, and is gone with
its object.
"""

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

from flwr.supercore.inflatable.inflatable_object import get_object_id
from flwr.supercore.inflatable.inflatable_utils import validate_object_content
from flwr.supercore.object_store.sql_object_store import SqlObjectStore
from flwr.supercore.state.schema.objectstore_models import StoredObject
from sqlalchemy import event, func, select, text, update
from typing_extensions import override

from fcl_flower.core.files import make_private_folder

LARGE = 2**16
"""Bytes from which on a content has a file of its own."""
PLACE = b"\0file "
"""The head of a file's name in a content's place. No content begins like it."""
MANY_PAGES = 2**12
"""The empty pages for which it is worth to write a database anew."""
PATIENCE = "busy_timeout", "60000"
"""Milliseconds for which a call waits for others' changes: disks may be busy."""


class FileObjectStore(SqlObjectStore):
    """Flower's store of objects, whose large contents lie in a folder."""

    def __init__(self, folder: Path, database: str) -> None:
        """Keep files in ``folder``, which is this store's alone."""
        super().__init__(database, verify=False)  # done here, before it is a place
        self._folder = folder

    @override
    def initialize(self, log_queries: bool = False, **engine: Any) -> list[str]:
        """Connect to the database, and drop what a crash has left of contents."""
        tables = super().initialize(log_queries, **engine)
        self._shrink()
        make_private_folder(self._folder)
        kept = set[Path]()
        with self.session() as session:
            query = select(StoredObject.object_id, StoredObject.content)
            places = query.where(func.substr(StoredObject.content, 1, 6) == PLACE)
            for object_id, place in cast(Any, session.execute(places).all()):
                content = self._read(place)
                if content is not None and get_object_id(content) == object_id:
                    kept.add(self._file(place))
                    continue
                row = update(StoredObject).where(StoredObject.object_id == object_id)
                session.execute(row.values(content=b"", is_available=0))
        for path in set(self._folder.iterdir()) - kept:
            path.unlink()
        return tables

    @override
    def put(self, object_id: str, object_content: bytes) -> None:
        """Put a content where a message before has announced it."""
        if get_object_id(object_content) != object_id:
            raise ValueError(f"object {object_id}: got another content")
        validate_object_content(object_content)
        if len(object_content) < LARGE:
            super().put(object_id, object_content)
            return
        place = PLACE + uuid4().hex.encode()
        with self.session():
            super().put(object_id, place)
            if super().get(object_id) == place:  # and it was not there already
                self._file(place).write_bytes(object_content)

    @override
    def get(self, object_id: str) -> bytes | None:
        """Get a content: empty if it is not there yet, None if it is gone."""
        content = super().get(object_id)
        if content is None or not content.startswith(PLACE):
            return content
        return self._read(content)

    @override
    def delete(self, object_id: str) -> None:
        """Delete an object, and what belongs to no other."""
        with self.session() as session:
            content = super().get(object_id)
            super().delete(object_id)
            if content and content.startswith(PLACE) and object_id not in self:
                remove = partial(self._file(content).unlink, missing_ok=True)
                event.listen(session, "after_commit", lambda _: remove(), once=True)

    def _shrink(self) -> None:
        # A version before kept large contents there.
        (free,) = self.query("PRAGMA freelist_count")
        if free["freelist_count"] > MANY_PAGES and self._engine is not None:
            with self._engine.connect() as connection:
                connection.execution_options(isolation_level="AUTOCOMMIT")
                connection.execute(text("VACUUM"))

    def _file(self, place: bytes) -> Path:
        return self._folder / place.removeprefix(PLACE).decode()

    def _read(self, place: bytes) -> bytes | None:
        with suppress(FileNotFoundError):
            return self._file(place).read_bytes()
        return None
