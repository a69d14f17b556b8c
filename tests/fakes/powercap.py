"""A powercap folder as Linux shows it for processors with RAPL: packages, their memory, and what must not count."""

from pathlib import Path


class FakePowercap:
    """Makes zones under a folder and moves their counters. Energies in joules."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)

    def add_package(
        self, number: int = 0, *, name: str | None = None, energy_j: float = 100.0, max_power_w: float | None = 205.0
    ) -> None:
        """A processor package; its cores are a zone of their own, part of the package's energy."""
        folder = self._zone(f"intel-rapl:{number}", name or f"package-{number}", energy_j)
        if max_power_w is not None:
            (folder / "constraint_0_max_power_uw").write_text(f"{round(max_power_w * 1e6)}\n")
        self._zone(f"intel-rapl:{number}/intel-rapl:{number}:0", "core", energy_j / 2)

    def add_memory(self, number: int = 0, *, energy_j: float = 20.0) -> None:
        """The memory of a package."""
        self._zone(f"intel-rapl:{number}/intel-rapl:{number}:1", "dram", energy_j)

    def set(self, energy_j: float, *, package: int = 0, memory: bool = False, range_j: float | None = None) -> None:
        """Let a counter say this, and wrap at ``range_j``."""
        folder = self._folder(package, memory=memory)
        (folder / "energy_uj").write_text(f"{round(energy_j * 1e6)}\n")
        if range_j is not None:
            (folder / "max_energy_range_uj").write_text(f"{round(range_j * 1e6)}\n")

    def consume(self, energy_j: float, *, package: int = 0, memory: bool = False) -> None:
        """Move a counter on; it begins again at its range."""
        folder = self._folder(package, memory=memory)
        range_j = int((folder / "max_energy_range_uj").read_text()) / 1e6
        now_j = int((folder / "energy_uj").read_text()) / 1e6
        self.set((now_j + energy_j) % range_j, package=package, memory=memory)

    def lose(self, *, package: int = 0) -> None:
        """Let a counter become unreadable for everybody, root included."""
        (self._folder(package, memory=False) / "energy_uj").unlink()

    def _folder(self, package: int, *, memory: bool) -> Path:
        folder = self.root / f"intel-rapl:{package}"
        return folder / f"intel-rapl:{package}:1" if memory else folder

    def _zone(self, path: str, name: str, energy_j: float) -> Path:
        folder = self.root / path
        folder.mkdir(parents=True)
        (folder / "name").write_text(f"{name}\n")
        (folder / "energy_uj").write_text(f"{round(energy_j * 1e6)}\n")
        (folder / "max_energy_range_uj").write_text("262143328850\n")
        (folder / "constraint_0_name").write_text("long_term\n")
        return folder
