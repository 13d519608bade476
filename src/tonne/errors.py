"""Every error tonne raises, in one tree, with the codes that the CLI, logs and scripts share.

An error says what failed, where, why, and what to do next.  Four classes answer the question "what may I do
about it?" for anything that gives bytes: `Missing` (it is not there), `Corrupt` (wrong bytes came), `Unavailable`
(it may work later) and `Refused` (it will not work until someone changes something).

Messages never hold secrets or signed URLs: whoever raises passes an origin such as ``registry.example.com/ml/bert``,
not a URL with a query.  What gets in with somebody else's text all the same is cut out here, and what would move a
terminal's cursor is escaped: an error may be printed, logged or sent as it is.
"""

from __future__ import annotations

from typing import Any, ClassVar

from tonne.quoting import shown, without_secrets


class TonneError(Exception):
    """The root.  Subclasses with a `code` of their own are what gets raised.

    Args:
        what: what failed, one clause, lower case, without a full stop.
        where: the origin, path or reference concerned.
        why: the cause, as far as it is known.
        todo: the next step for the reader; the class's own `todo` when empty.
        fields: typed details for scripts (sizes in bytes, times in seconds, digests as text).
    """

    code: ClassVar[str] = "internal"
    exit_status: ClassVar[int] = 70
    retryable: ClassVar[bool] = False
    meaning: ClassVar[str] = "A defect in tonne itself."
    todo: ClassVar[str] = "report it with the command that was run"

    def __init__(self, what: str, *, where: str = "", why: str = "", todo: str = "", **fields: Any) -> None:
        self.what = _quoted(what)
        self.where = _quoted(where)
        self.why = _quoted(why)
        self.next = _quoted(todo) or type(self).todo
        self.fields = fields
        super().__init__(self.what)

    def __str__(self) -> str:
        # Again, because others may have put more into `where` meanwhile.
        return _quoted(": ".join(part for part in (self.what, self.where, self.why) if part))

    @property
    def line(self) -> str:
        """One line for people: message, then the next step."""
        return f"{self}; {self.next}" if self.next else str(self)

    def document(self) -> dict[str, Any]:
        """The error as a JSON-ready mapping for scripts."""
        body: dict[str, Any] = {"code": self.code, "message": str(self), "what": self.what}
        for name in ("where", "why", "next"):
            value = getattr(self, name)
            if value:
                body[name] = _quoted(value)
        if self.fields:
            body["fields"] = {
                k: v if isinstance(v, (int, float, bool, type(None))) else _quoted(str(v))
                for k, v in self.fields.items()
            }
        return {"error": body}

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.what, self.where, self.why, self.next, self.fields))


def _quoted(text: str) -> str:
    return shown(without_secrets(text))


def _rebuild(cls: type[TonneError], what: str, where: str, why: str, todo: str, fields: dict[str, Any]) -> TonneError:
    return cls(what, where=where, why=why, todo=todo, **fields)


# --- what the user typed -------------------------------------------------------------------------------------------


class UsageError(TonneError):
    code = "usage"
    exit_status = 2
    meaning = "The command line cannot be carried out as it was written."
    todo = "see `tonne COMMAND --help`"


class BadReference(UsageError):
    code = "reference.invalid"
    meaning = "A reference does not have the form HOST/REPOSITORY:TAG, HOST/REPOSITORY@DIGEST or oci:FOLDER:TAG."
    todo = "write it as registry.example.com/ml/bert:v1 or oci:./images:v1"


class BadSettings(UsageError):
    code = "settings.invalid"
    meaning = "A setting, environment variable or configuration file has a value that cannot be used."
    todo = "correct or remove it"


# --- missing --------------------------------------------------------------------------------------------------------


class Missing(TonneError):
    code = "missing"
    exit_status = 3
    meaning = "Something that was named is not there."
    todo = "check the name"


class MissingManifest(Missing):
    code = "missing.manifest"
    meaning = "The repository has no such tag or digest."
    todo = "list what is there with `tonne tags REPOSITORY`"


class MissingBlob(Missing):
    code = "missing.blob"
    meaning = "The registry or layout does not hold a blob that the image lists."
    todo = "pack or copy the image again: the registry has lost part of it"


class MissingRepository(Missing):
    code = "missing.repository"
    meaning = "The registry or folder has no such repository."
    todo = "check the repository's name"


class MissingPath(Missing):
    code = "missing.path"
    meaning = "A file or folder does not exist, on disk or in the image."
    todo = "check the path; `tonne ls REF` lists an image"


class SessionLost(Missing):
    code = "missing.session"
    retryable = True
    meaning = "The registry has forgotten an upload session."
    todo = "run the command again: the blob is sent in a new session"


# --- corrupt --------------------------------------------------------------------------------------------------------


class Corrupt(TonneError):
    code = "corrupt"
    exit_status = 6
    retryable = True
    meaning = "Bytes do not have the digest or the form that they must have.  They were not used."
    todo = "run `tonne verify REF`; if it repeats, the stored image is damaged"


class CorruptBytes(Corrupt):
    code = "corrupt.bytes"
    meaning = "A source sent bytes of the wrong digest.  They were thrown away."


class ShortBody(Corrupt):
    code = "corrupt.short"
    meaning = "A source sent fewer bytes than it announced or than the blob has."


class LongBody(Corrupt):
    code = "corrupt.long"
    meaning = "A source sent more bytes than were asked for or than the limit allows."


class CorruptIndex(Corrupt):
    code = "corrupt.index"
    retryable = False
    meaning = "An image's index has the right digest but breaks the format: it was written wrongly or to do harm."
    todo = "do not use the image; ask who packed it"


class CorruptDocument(Corrupt):
    code = "corrupt.document"
    retryable = False
    meaning = "A manifest, configuration or other document cannot be parsed."
    todo = "check that the reference names a tonne image"


class CorruptLocal(Corrupt):
    code = "corrupt.local"
    meaning = "Bytes on the local disk changed after they were verified."
    todo = "the copy is fetched again by itself; if it repeats, check the disk"


class VerifyFailed(Corrupt):
    code = "corrupt.verify"
    retryable = False
    meaning = "`tonne verify` found differences; they are listed before this line."
    todo = "pull again, or pack the image again if the registry's copy is damaged"


# --- unavailable ----------------------------------------------------------------------------------------------------


class Unavailable(TonneError):
    code = "unavailable"
    exit_status = 5
    retryable = True
    meaning = "A source does not answer as it should at the moment."
    todo = "run the command again: what was done is kept"


class UnknownHost(Unavailable):
    code = "unavailable.host"
    meaning = "The host name cannot be resolved."
    todo = "check the spelling, the DNS and the proxy settings"


class Unreachable(Unavailable):
    code = "unavailable.connect"
    meaning = "No connection to the host: refused, reset or no route."
    todo = "check that the registry runs and that the port is right"


class TlsFailure(Unavailable):
    code = "unavailable.tls"
    retryable = False
    meaning = "The TLS certificate is not trusted, or the server does not speak TLS."
    todo = "give the authority with --ca FILE, or --plain-http if the registry has no TLS"


class Stalled(Unavailable):
    code = "unavailable.stalled"
    meaning = "The transfer stopped making progress."


class DeadlineExceeded(Unavailable):
    code = "unavailable.deadline"
    retryable = False
    meaning = "The work was not done within its deadline."
    todo = "raise --deadline, or look at the source that was slow"


class Busy(Unavailable):
    code = "unavailable.busy"
    meaning = (
        "The registry limits requests (429) or is overloaded (503).  `retry_after_s` says how long it asks to wait."
    )


class ServerError(Unavailable):
    code = "unavailable.server"
    meaning = "The registry failed (status 5xx)."


class ProtocolError(Unavailable):
    code = "unavailable.protocol"
    meaning = "The answer does not follow the protocol: it is perhaps not a registry that answers."
    todo = "check host, port and proxies in between"


class TagMoved(Unavailable):
    code = "unavailable.tag"
    retryable = False
    meaning = "Something else gave the tag to another image at the same moment."
    todo = "run the command again, or use the digest that it tells"


# --- refused --------------------------------------------------------------------------------------------------------


class Refused(TonneError):
    code = "refused"
    exit_status = 4
    meaning = "The other side will not do it as asked; trying again changes nothing."
    todo = "ask the registry's administrator"


class Unauthenticated(Refused):
    code = "refused.credentials"
    meaning = "The registry does not accept the credentials, or wants some and there are none (401)."
    todo = "log in with `docker login HOST`, or set TONNE_USERNAME and TONNE_PASSWORD"


class Forbidden(Refused):
    code = "refused.rights"
    meaning = "The credentials are valid but do not allow this (403)."
    todo = "ask for the right to pull or push in this repository"


class TooLarge(Refused):
    code = "refused.size"
    meaning = "The registry does not take a blob or manifest of this size."
    todo = "choose a smaller --pack-size, or raise the registry's limit"


class Unsupported(Refused):
    code = "refused.unsupported"
    meaning = "The registry, proxy or folder cannot do this at all."
    todo = "use a registry or folder that can, or ask its administrator"


# --- formats --------------------------------------------------------------------------------------------------------


class ForeignManifest(TonneError):
    code = "format.foreign"
    exit_status = 8
    meaning = "The reference names something that is not a tonne image."
    todo = "use the tool that the message names"


class UnknownVersion(TonneError):
    code = "format.version"
    exit_status = 8
    meaning = "The image was written by a newer tonne, in a version or with features that this one does not know."
    todo = "upgrade tonne"


# --- this machine ---------------------------------------------------------------------------------------------------


class LocalError(TonneError):
    code = "local"
    exit_status = 7
    meaning = "Something on this machine is in the way."
    todo = "put right what the message names, and run the command again"


class DiskFull(LocalError):
    code = "local.full"
    meaning = "The disk has no room."
    todo = "free space or choose another folder; what is there already is kept"


class ReadOnly(LocalError):
    code = "local.readonly"
    meaning = "A folder that must be written cannot be."
    todo = "choose a folder that is writable, for the cache with --cache or TONNE_CACHE"


class LocalFailure(LocalError):
    code = "local.io"
    meaning = "The operating system reports an error on a local file."
    todo = "check the disk and the permissions"


class Locked(LocalError):
    code = "local.locked"
    meaning = "Another tonne process works on the same target."
    todo = "wait until it is done, or stop it"


class TargetExists(LocalError):
    code = "local.exists"
    meaning = "The target holds something that must not be overwritten."
    todo = "choose an empty folder"


class SourceChanged(LocalError):
    code = "local.changed"
    meaning = "A file changed while it was packed."
    todo = "stop whatever writes to the folder and pack again"


class FolderTooLarge(LocalError):
    code = "local.size"
    meaning = "The folder has more files, or more bytes, than one image can hold."
    todo = "pack parts of it as images of their own"


class SymlinkOutside(LocalError):
    code = "local.symlink"
    meaning = "A symbolic link cannot be packed as asked: it leaves the folder, is broken or runs in a circle."
    todo = "choose --links keep or --links follow, or leave it out with --exclude"


class UnsafePath(LocalError):
    code = "local.path"
    meaning = "A path would lead out of the target folder."
    todo = "do not use the image, or pull into an empty folder"


class NoFuse(LocalError):
    code = "mount.fuse"
    meaning = "FUSE is not there: the extra is not installed, or /dev/fuse or fusermount3 is missing."
    todo = "pip install 'tonne[fuse]', apt install fuse3, and give the container /dev/fuse; or use `tonne pull`"


class BadMountPoint(LocalError):
    code = "mount.point"
    meaning = "The mount point does not exist, is no folder, is not empty, or is mounted already."
    todo = "give an empty folder, or `tonne umount` it first"


class NotMounted(LocalError):
    code = "mount.absent"
    meaning = "There is no tonne mount at this place."
    todo = "see `findmnt -t fuse.tonne`"


class MountBusy(LocalError):
    code = "mount.busy"
    meaning = "Processes use the mount."
    todo = "end them, or use `tonne umount --lazy`"


class Interrupted(TonneError):
    code = "interrupted"
    exit_status = 130
    meaning = "The command was stopped by a signal.  Nothing half-done is visible; the same command goes on from there."
    todo = "run the same command again to go on"


def codes() -> dict[str, type[TonneError]]:
    """Every code with its class, the root's included, sorted by code."""
    found: dict[str, type[TonneError]] = {}
    pending: list[type[TonneError]] = [TonneError]
    while pending:
        cls = pending.pop()
        if cls.code in found:
            raise AssertionError(f"two errors share the code {cls.code}")
        found[cls.code] = cls
        pending.extend(cls.__subclasses__())
    return dict(sorted(found.items()))
