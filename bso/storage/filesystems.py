"""Whether a file lies on a network file system."""

from __future__ import annotations

import re
from pathlib import Path

from bso.storage.errors import NetworkFileSystem

MOUNTS = Path("/proc/self/mountinfo")
_NETWORK = frozenset(
    {
        "9p",
        "acfs",
        "afs",
        "autofs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "fuse.beegfs",
        "fuse.ceph",
        "fuse.gcsfuse",
        "fuse.glusterfs",
        "fuse.juicefs",
        "fuse.lustre",
        "fuse.mfs",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.sshfs",
        "gfs2",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "orangefs",
        "panfs",
        "pvfs2",
        "smb3",
        "smbfs",
        "wekafs",
    }
)


def require_local(path: Path, *, mounts: Path = MOUNTS) -> None:
    """Raise NetworkFileSystem if the file's folder is on one. Knows only Linux; elsewhere everything passes."""
    try:
        text = mounts.read_text()
    except OSError:
        return
    kind = file_system_of(path, text)
    if kind in _NETWORK:
        raise NetworkFileSystem(
            f"{path} lies on a network file system ({kind}), where SQLite's locks do not hold and the file would be "
            "corrupted: let BSO_URL name a file on a local disk (sqlite:////path/to/file.sqlite) or a broker "
            "(amqp://...)"
        )


def file_system_of(path: Path, mounts: str) -> str | None:
    """The type of the file system that holds a path, from the text of /proc/self/mountinfo."""
    place = path.resolve()
    best, kind = -1, None
    for line in mounts.splitlines():
        before, separator, after = line.partition(" - ")
        fields = before.split(" ")
        if not separator or len(fields) < 5:
            continue
        mount_point = Path(_unescaped(fields[4]))
        depth = len(mount_point.parts)
        if place.is_relative_to(mount_point) and depth >= best:
            best, kind = depth, after.split(" ", 1)[0]
    return kind


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda digits: chr(int(digits[1], 8)), text)
