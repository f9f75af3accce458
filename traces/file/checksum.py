"""CRC-32 at speed, since traces are read at several gigabytes per second."""

try:
    from isal.isal_zlib import crc32  # the same values as zlib's, several times faster
except ImportError:
    from zlib import crc32

__all__ = ["crc32"]
