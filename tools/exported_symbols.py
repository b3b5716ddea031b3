"""Reads the exported symbols and the imported libraries of a shared library: ELF, PE and Mach-O, all 64-bit."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class LibrarySymbols:
    """What a shared library offers and needs.

    Attributes:
        machine: ``x86_64`` or ``aarch64``.
        exported: Names of its functions.
        imported: Undefined symbols (ELF) or needed libraries (PE, Mach-O).
        oldest_macos: Oldest macOS that loads it, such as ``11.0``; empty for other systems.
    """

    machine: str
    exported: frozenset[str]
    imported: frozenset[str]
    oldest_macos: str = ""


def library_symbols(content: bytes) -> LibrarySymbols:
    """Return what a shared library offers and needs.

    Args:
        content: The whole file.
    """
    if content[:4] == b"\x7fELF":
        return _elf(content)
    if content[:2] == b"MZ":
        return _pe(content)
    if content[:4] == struct.pack("<I", 0xFEEDFACF):
        return _mach_o(content)
    raise ValueError(f"a library must be ELF, PE or Mach-O, got a file that starts with {content[:4]!r}")


def _text(content: bytes, offset: int) -> str:
    return content[offset : content.index(b"\0", offset)].decode()


def _elf(content: bytes) -> LibrarySymbols:
    machine = {62: "x86_64", 183: "aarch64"}[struct.unpack_from("<H", content, 18)[0]]
    (table,) = struct.unpack_from("<Q", content, 40)
    size, count = struct.unpack_from("<HH", content, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", content, table + number * size) for number in range(count)]
    exported, imported = set(), set()
    for section in (section for section in sections if section[1] == 11):  # SHT_DYNSYM
        names = sections[section[6]][4]
        for offset in range(section[4] + 24, section[4] + section[5], 24):  # the first symbol is always empty
            name, info, _, defined_in = struct.unpack_from("<IBBH", content, offset)
            if info >> 4:  # not local
                (exported if defined_in else imported).add(_text(content, names + name))
    return LibrarySymbols(machine, frozenset(exported), frozenset(imported))


def _pe(content: bytes) -> LibrarySymbols:
    (header,) = struct.unpack_from("<I", content, 60)
    kind, count = struct.unpack_from("<HH", content, header + 4)
    (optional_size,) = struct.unpack_from("<H", content, header + 20)
    sections = [struct.unpack_from("<8sIIII", content, header + 24 + optional_size + 40 * n) for n in range(count)]

    def place(address: int) -> int:
        """Return where in the file the loader takes an address from."""
        return next(raw + address - start for _, size, start, _, raw in sections if start <= address < start + size)

    exports, _, imports, _ = struct.unpack_from("<IIII", content, header + 24 + 112)
    named, _, names = struct.unpack_from("<III", content, place(exports) + 24)
    addresses = struct.unpack_from(f"<{named}I", content, place(names))
    needed = set()
    entry = place(imports) if imports else 0
    while entry and (name := struct.unpack_from("<I", content, entry + 12)[0]):
        needed.add(_text(content, place(name)))
        entry += 20
    machine = {0x8664: "x86_64", 0xAA64: "aarch64"}[kind]
    return LibrarySymbols(machine, frozenset(_text(content, place(item)) for item in addresses), frozenset(needed))


_ADDED_BY_LINKER = {"__dso_handle", "_mh_dylib_header"}


def _mach_o(content: bytes) -> LibrarySymbols:
    machine = {0x01000007: "x86_64", 0x0100000C: "aarch64"}[struct.unpack_from("<I", content, 4)[0]]
    exported, needed, oldest = set(), set(), ""
    commands = dict(_load_commands(content))
    if machine == "aarch64" and 0x1D not in commands:  # LC_CODE_SIGNATURE
        raise ValueError("a library for Apple Silicon must be signed, which macOS checks when it loads it; got none")
    for command, offset in _load_commands(content):
        if command == 0x0C:  # LC_LOAD_DYLIB
            needed.add(_text(content, offset + struct.unpack_from("<I", content, offset + 8)[0]))
        elif command == 0x32:  # LC_BUILD_VERSION
            system, version = struct.unpack_from("<II", content, offset + 8)
            if system != 1:
                raise ValueError(f"a library for macOS must be marked for it (1), got system {system}")
            oldest = f"{version >> 16}.{version >> 8 & 0xFF}"
        elif command == 0x02:  # LC_SYMTAB
            symbols, count, names, _ = struct.unpack_from("<IIII", content, offset + 8)
            for number in range(count):
                name, kind = struct.unpack_from("<IB", content, symbols + 16 * number)
                if kind & 0x1F == 0x0F:  # external and defined in a section
                    exported.add(_text(content, names + name).removeprefix("_"))
    return LibrarySymbols(machine, frozenset(exported - _ADDED_BY_LINKER), frozenset(needed), oldest)


def _load_commands(content: bytes) -> Iterator[tuple[int, int]]:
    (count,) = struct.unpack_from("<I", content, 16)
    offset = 32
    for _ in range(count):
        command, size = struct.unpack_from("<II", content, offset)
        yield command, offset
        offset += size
