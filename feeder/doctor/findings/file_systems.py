"""What a file system's kind and source show: where its data is, and whether a read may hang."""

import re

_REMOTE_KINDS = {
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "lustre", "beegfs", "beegfs_nodev", "gpfs"),
    *("afs", "glusterfs", "orangefs", "pvfs2", "wekafs", "panfs", "ncpfs", "ocfs2", "gfs2", "coda"),
    *("fhgfs", "quobyte"),
}
_REMOTE_FUSE = {
    *("sshfs", "nfs", "smbnetfs", "davfs", "davfs2", "curlftpfs", "httpfs", "httpdirfs", "rclone"),
    *("s3fs", "s3ql", "goofys", "mountpoint-s3", "mount-s3", "geesefs", "gcsfuse", "blobfuse"),
    *("blobfuse2", "ossfs", "ossfs2", "cosfs", "obsfs", "juicefs", "seaweedfs", "glusterfs"),
    *("ceph", "ceph-fuse", "mfs", "moosefs", "lizardfs", "saunafs", "cvmfs", "cvmfs2", "quobyte"),
    *("alluxio", "alluxio-fuse", "fuse_dfs", "eosxd", "xrootdfs", "oneclient", "curvefs"),
}
"""Programs, as they name themselves in the kind ("fuse.sshfs") or in the source ("fuse" alone)."""

_HOST_KINDS = {"9p", "virtiofs", "vboxsf", "prl_fs", "vmhgfs", "fuse.vmhgfs-fuse"}
"""Folders that a virtual machine's host shares with it; WSL mounts the disks of Windows by 9p."""

_LOCAL_FUSE = {"fuseblk", "fuse.mergerfs", "fuse.fuse-overlayfs", "fuse.lxcfs", "fuse.ntfs-3g"}
"""File systems in user space that are local without doubt, so that they answer."""


def is_remote(kind: str, source: str) -> bool:
    """Whether a file system's data is on another machine, as far as its kind and source show."""
    if kind in _REMOTE_KINDS:
        return True
    if kind != "fuse":
        return kind.startswith("fuse.") and kind[5:] in _REMOTE_FUSE
    program = re.split("[#:]", source, maxsplit=1)[0].lower()  # mfs#10.1.0.5:9421, JuiceFS:sets
    return program in _REMOTE_FUSE or "://" in source


def describe_detour(kind: str, source: str) -> str:
    """What reads pass besides the kernel, such as "over the network"; "" for nothing."""
    if is_remote(kind, source):
        return "over the network"
    if kind in _HOST_KINDS:
        return "through the host"
    return "through user space" if _is_fuse(kind) else ""


def may_hang(kind: str) -> bool:
    """Whether accessing a path on such a file system may block, perhaps for ever.

    An automounter mounts what is accessed, which may be on a server that does not answer. So may
    be what a program in user space shows.
    """
    if kind in _REMOTE_KINDS or kind in _HOST_KINDS or kind == "autofs":
        return True
    return _is_fuse(kind) and kind not in _LOCAL_FUSE


def _is_fuse(kind: str) -> bool:
    return kind in ("fuse", "fuseblk") or kind.startswith("fuse.")
