"""Codes of what is found in foreign files of tensors; the templates are in ``wording``."""

from __future__ import annotations

from msprobe_core.findings import Code


class FilesCode(Code):
    """A finding about a file of tensors, or about one tensor in it."""

    # Damaged: bytes that contradict each other. All have the byte position.
    CUT_OFF = "tensor-file.damaged.cut-off"
    NO_END = "tensor-file.damaged.no-end"
    HEADER = "tensor-file.damaged.header"
    NUMBER = "tensor-file.damaged.number"
    OVERLAP = "tensor-file.damaged.overlap"
    SIZE = "tensor-file.damaged.size"
    DAMAGED = "tensor-file.damaged.text"
    # Refused: content that is not read, whether it is whole or not.
    DTYPE = "tensor-file.refused.dtype"
    TOO_MANY = "tensor-file.refused.too-many"
    TOO_LARGE = "tensor-file.refused.too-large"
    UNFOLDS = "tensor-file.refused.unfolds"
    ENCRYPTED = "tensor-file.refused.encrypted"
    OBJECT = "tensor-file.refused.object"
    UNKNOWN = "tensor-file.refused.unknown"
    # Notes on what is sound.
    SPACE = "tensor-file.note.space"
    LAYOUT_KEPT = "tensor-file.note.layout-kept"
    RELAID = "tensor-file.note.relaid"
    WIDENED = "tensor-file.note.widened"
    # What a conversion cannot do.
    NOT_IN_FORMAT = "tensor-file.refused.not-in-format"
