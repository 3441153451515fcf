"""From a mesh to a model that one can use: one folder, filled stage by stage.

Each stage leaves its result in OUT/work together with a fingerprint of what it came from. Started again, whatever is
there and came from the same is not done again, so a fit may be killed at any moment. Training, temperatures,
calibration and the final judgement each see renders of their own split, all drawn alike.
"""

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aquamam.checkpoints.checkpoint import load, save_model
from aquamam.data.photos import PhotoDataset
from aquamam.data.renders import RenderedDataset
from aquamam.errors import InputError, require
from aquamam.evaluation.results import LEVELS
from aquamam.files import write_json
from aquamam.fit.judgement import CURVE, SAMPLES, judge, kind_words, rank
from aquamam.fit.part import check_part, open_part, placed
from aquamam.fit.stages import Stages
from aquamam.geometry.rotations import LOG_UNIFORM
from aquamam.geometry.symmetry import SymmetryGroup
from aquamam.network.model import AQuaMaM, ModelConfig
from aquamam.pages.fit import FitPage, preview
from aquamam.rendering.known import MESH_FILE
from aquamam.rendering.meshes import FIT_RADIUS, Mesh, read_mesh, write_mesh
from aquamam.rendering.render import RenderSettings, render
from aquamam.shape.matching import Tolerance
from aquamam.shape.surface import directions, looking_from
from aquamam.shape.symmetries import find_symmetries, models_info
from aquamam.shape.view_map import view_ambiguity
from aquamam.training.calibrate import calibrate, find_typicality, temper
from aquamam.training.config import TrainConfig
from aquamam.training.runfolder import differences
from aquamam.training.trainer import Trainer

TRAINING_SHARE = 0.8  # of the time budget; the rest is for the views, calibration and the judgement
LEARNED = 0.5  # nats above the uniform density: less is nothing that anyone could use
# what may change when a fit goes on: with a longer schedule it learns on from what was learned
FREE = {"time_budget", "steps", "threads", "checkpoint_seconds", "compile", "validate_every", "validation_size"}


@dataclass(frozen=True, kw_only=True)
class FitConfig:
    """What decides a fit besides the part."""

    model: ModelConfig
    train: TrainConfig  # its labels_per_image is set by the symmetries found
    plain_share: float = 0.0  # of the training pictures, plain renders instead of photograph-like ones; 1: of all
    backgrounds: Path | None = None  # a folder of pictures to put behind the part
    mesh_error: float = 0.08  # how far the real part may differ from its mesh, as a share of its size
    start: str | None = None  # a model whose weights to start from
    unit: str = ""  # of the mesh's file, where the user says it: mm, cm or m
    held_out: int = 2000  # images for calibration, and as many for the judgement
    views: int = 96  # directions from which ambiguity is looked for
    tolerance: float = 0.01  # of symmetries, as a share of the radius
    groups: int = 6  # that are calibrated each for itself, from sure to unsure

    def __post_init__(self) -> None:
        least, share = 20 * self.groups, self.plain_share
        few = f"at least {least} held-out images are needed, got {self.held_out}; 2000 is good."
        require(self.held_out >= least, few)
        require(0 <= share <= 1, f"the share of plain renders lies from 0 to 1, got {share}; 0.25 is a quarter.")
        require(self.views >= 1, f"at least one view is needed, got {self.views}; 96 is good.")

    @property
    def identity(self) -> dict[str, Any]:
        """What a folder's fit cannot change."""
        train = {k: v for k, v in self.train.to_dict().items() if k not in FREE}
        plain = self.plain_share if 0 < self.plain_share < 1 else self.plain_share == 1
        own: dict[str, Any] = {"tolerance": self.tolerance, "mesh_error": self.mesh_error}
        own |= {"plain": plain, "backgrounds": str(self.backgrounds or "")}
        return {"model": self.model.to_dict(), "train": train, **own}


class Fit:
    """One part and one folder."""

    def __init__(
        self,
        source: str,
        out: Path,
        config: FitConfig,
        *,
        say: Callable[[str], None] = lambda line: None,
        quiet: bool = True,
        device: str | None = None,
        untextured: bool = False,
    ):
        self.source, self.out, self.config = source, out, config
        self.say, self.quiet = say, quiet
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.stages, self.tempered = Stages(out / "work"), out / "work" / "tempered.safetensors"
        self.curve: Path | None = None  # the log of the training
        self.file_mesh = open_part(source, untextured=untextured)
        self.facts: dict[str, Any] = {"name": self.file_mesh.name, "source": Path(source).name}

    def run(self) -> dict[str, Any]:
        """Do all that is not done yet; returns what fit.json says."""
        config, facts, model = self.config, self.facts, self.out / "model.safetensors"
        self._check_folder()
        self.say(f"part          {self.file_mesh.name}: {len(self.file_mesh.faces):,} triangles")
        inputs: list[Any] = [self.file_mesh.hash, config.model.image_size, config.tolerance]
        self.part = self.stages("part", inputs, self._find_part, [self.out / MESH_FILE])
        facts |= {"part": self.part, "settings": config.identity}
        self._tell(f"symmetries    {self.part['headline']}")
        facts["views"] = views = self.stages("views", [self.part["mesh"], config.views], self._look_around)
        self._tell(f"views         {views['words']}")
        facts["training"] = trained = self._train()
        words = f"validation log-likelihood {trained['best']:.3f}"
        self._tell(f"trained       on {trained['images']:,} renders; {words}")
        self._check_learned(trained)
        inputs = [self.part["mesh"], *(trained[key] for key in ("folder", "steps", "best")), config.held_out]
        facts["temperatures"] = self.stages("temper", inputs, self._temper, [self.tempered])
        inputs += [facts["temperatures"], config.groups, config.unit]
        facts["calibration"] = self.stages("calibrate", inputs, self._calibrate, [model])
        groups = f", {config.groups} groups from sure to unsure" if config.groups > 1 else ""
        self.say(f"calibrated    on {config.held_out:,} renders{groups}")
        pages = [self.out / "evaluation.html", self.out / "evaluation.json"]
        facts |= self.stages("evaluate", [*inputs, views], self._judge, pages)
        facts["seconds"] = self.stages.seconds | {"training": trained["elapsed"]}
        self._write_page(done=True)
        kept = {k: v for k, v in facts.items() if k != "pictures"}
        write_json(self.out / "fit.json", kept)
        return kept

    def _tell(self, line: str) -> None:
        self.say(line)
        self._write_page()

    def _write_page(self, *, done: bool = False) -> None:
        self.page.write(self.facts, log=self.curve, done=done)

    @cached_property
    def page(self) -> FitPage:
        return FitPage(self.out, self.mesh, self.data("train"))

    # The folder.

    @property
    def _identity(self) -> dict[str, Any]:
        return {"mesh": self.file_mesh.hash, **self.config.identity}

    def _check_folder(self) -> None:
        """Raise InputError if the folder is another fit's, or somebody else's."""
        path, out = self.out / "work" / "inputs.json", self.out
        require(not out.is_file(), f"{out} is a file, and a fit needs a folder; give another one with --out.")
        if path.exists():
            differ = differences(self._identity, json.loads(path.read_text()))
            hint = "give another --out, or the same settings to go on"
            require(not differ, f"{out} holds another fit: {', '.join(differ[:3])} differ; {hint}.")
        elif out.exists() and any(out.iterdir()):
            raise InputError(f"{out} is there already and is no fit of ours; give another folder with --out.")

    # The part.

    def _find_part(self) -> dict[str, Any]:
        found = find_symmetries(self.file_mesh, tolerance=Tolerance(distance=self.config.tolerance))
        mesh, centre, scale = placed(self.file_mesh, found)
        check_part(mesh, found, self.config.model.image_size)
        assert found.group is not None
        write_json(self.out / "work" / "inputs.json", self._identity)  # from here on the folder is ours
        write_mesh(mesh, self.out / MESH_FILE)
        write_json(self.out / "models_info.json", {"1": models_info(self.file_mesh, found)}, indent=2)
        write_json(self.out / "symmetries.json", {mesh.name: found.group.to_dict()})
        preview(mesh).save(self.out / "preview.png")
        start = time.perf_counter()
        render(mesh, looking_from(directions(64)), RenderSettings(size=self.config.model.image_size))
        rate = 64 / (time.perf_counter() - start)
        return {
            "mesh": mesh.hash,
            "triangles": len(mesh.faces),
            "centre": centre,  # rendered = (file - centre) * scale
            "scale": scale,
            "radius": FIT_RADIUS / scale,  # in the file's unit
            "symmetries": found.to_dict(),
            "headline": found.headline,
            "words": found.found.words,
            "renders_per_second": round(rate),
        }

    @cached_property
    def mesh(self) -> Mesh:
        """As it is rendered."""
        return read_mesh(self.out / MESH_FILE)

    @cached_property
    def group(self) -> SymmetryGroup:
        return SymmetryGroup.from_dict(self.part["symmetries"]["group"])

    def data(self, split: str, length: int | None = None) -> RenderedDataset:
        """Renders of a split; none shares an example with another.

        What calibrates and judges shows parts that differ from the mesh, and what trains does not: how sure a network
        may be of a real part can only be seen on differences that it has not learnt to see through.
        """
        options: dict[str, Any] = {"symmetries": {self.mesh.name: self.group}, "seed": self.config.train.seed}
        options |= {"split": split, "length": length, "lookalikes": True}
        size = self.config.model.image_size
        if self.config.plain_share == 1:
            return RenderedDataset(self.mesh, RenderSettings(size=size), **options)
        options["plain_share"] = self.config.plain_share if split == "train" else 0.0
        options["mesh_error"] = 0.0 if split in ("train", "valid") else self.config.mesh_error
        return PhotoDataset(self.mesh, size, backgrounds=self.config.backgrounds, **options)

    def _look_around(self) -> dict[str, Any]:
        found = view_ambiguity(self.mesh, self.config.views, quiet=self.quiet)
        # answers come in whole orbits of the group: where some were missed, the orbit tells them
        order = 1 if math.isinf(self.group.order) else int(self.group.order)
        whole = [-(-view.count // order) * order for view in found.views]
        kinds = [CURVE if view.continuous else str(count) for view, count in zip(found.views, whole)]
        share = {kind: kinds.count(kind) / len(kinds) for kind in sorted(set(kinds), key=rank)}
        words = ", ".join(f"{100 * s:.0f} % fit {kind_words(kind)}" for kind, s in share.items())
        return {
            "directions": np.round(found.directions, 5).tolist(),
            "kinds": kinds,
            "shares": share,
            "words": f"of {len(kinds)} directions {words}",
        }

    # The model.

    def _train(self) -> dict[str, Any]:
        config, source = self.config.train, self.config.start
        if self.group.order > 1:
            config = replace(config, labels_per_image=max(8, config.labels_per_image))
        budget = f"{config.time_budget:g}s" if config.time_budget else f"{config.steps}steps"
        folder = self.out / "training" / budget
        before = [p for p in (self.out / "training").glob("*/best.safetensors") if p.parent != folder]
        start, begun = None, "from scratch"
        if not (folder / "state.safetensors").exists():
            if before:
                start, begun = load(max(before, key=lambda p: p.stat().st_mtime)), "from the weights of before"
            elif source is not None:
                start, begun = load(source), f"from the weights of {source}"
        data = self.data("train"), self.data("valid", config.validation_size)
        options: dict[str, Any] = {"start_from": start, "device": self.device, "quiet": self.quiet}
        trainer = Trainer("aquamam", self.config.model.to_dict(), config, *data, folder, **options)
        length = f"{config.time_budget / 60:.1f} minutes" if config.time_budget else f"{config.steps:,} steps"
        self.say(f"training      {length}, {trainer.model.parameter_count:,} parameters, {begun}")
        self.curve = folder / "log.jsonl"
        progress = trainer.fit(lambda *_: self._write_page())
        return {
            "folder": str(folder.relative_to(self.out)),
            "steps": progress.step,
            "images": progress.images,
            "elapsed": round(progress.elapsed, 1),
            "best": progress.best,
            "parameters": trainer.model.parameter_count,
            "start": source or "none",
            "threads": torch.get_num_threads(),
        }

    def _check_learned(self, trained: dict[str, Any]) -> None:
        """Raise unless the model knows clearly more than the uniform density; the checkpoint is on disk."""
        if trained["best"] <= LOG_UNIFORM + LEARNED:
            self.facts["note"] = "Nothing was learned in this time: go on with a longer --time-budget."
            self._write_page()
            came = f"the validation log-likelihood {trained['best']:.2f} is not clearly above the uniform density's"
            kept = f"the checkpoint is kept in {self.out / trained['folder']}"
            raise InputError(
                f"nothing was learned in {trained['elapsed'] / 60:.1f} minutes of training: {came} {LOG_UNIFORM:.2f}; "
                f"{kept}, and the same command with a longer --time-budget goes on there."
            )

    def _temper(self) -> dict[str, Any]:
        # a few images: on the CPU wherever the rest is done
        model = load(self.out / self.facts["training"]["folder"] / "best.safetensors")
        assert isinstance(model, AQuaMaM)
        data = self.data("temper", max(20, self.config.held_out // 2))
        if data.view_classes is not None:
            model.learn(view_classes=data.view_classes.to_dict())
        temper(model, data)
        save_model(model, self.tempered)
        return {"temperatures": list(model.calibration.temperatures), "floor": model.calibration.floor}

    def _calibrate(self) -> dict[str, Any]:
        model, data = load(self.tempered, device=self.device), self.data("calibration", self.config.held_out)
        assert isinstance(model, AQuaMaM)
        found = calibrate(model, data, LEVELS, samples=SAMPLES, groups=self.config.groups, quiet=self.quiet)
        find_typicality(model, data)
        part = {k: self.part[k] for k in ("centre", "scale", "radius", "headline")}
        info = {
            "part": {"name": self.mesh.name, **part, "unit": self.config.unit, "mesh_error": self.config.mesh_error},
            "symmetries": self.part["symmetries"],
        }
        save_model(model, self.out, info)
        return {key: found[key] for key in ("images", "samples", "levels", "edges")}

    def _judge(self) -> dict[str, Any]:
        model, data = load(self.out, device=self.device), self.data("test", self.config.held_out)
        return judge(model, data, self.facts["views"], self.out, quiet=self.quiet)


def settings_for(budget: float) -> dict[str, int]:
    """How many held-out images and views a time budget in seconds allows."""
    return {"held_out": int(min(max(budget, 200), 2000)), "views": int(min(max(budget / 15, 16), 96))}
