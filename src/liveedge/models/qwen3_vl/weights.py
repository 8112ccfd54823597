"""Weights of a Hugging Face checkpoint into our modules.

One table says which tensors of a checkpoint make which parameter of ours (`export` reads it
backwards): q, k and v are one matrix here, and so are gate and up. Loading checks everything: each missing, extra or misshaped
tensor is `CheckpointInvalid` by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from liveedge.core.errors import CheckpointInvalid
from liveedge.models.headers import weight_files
from liveedge.models.qwen3_vl.config import (
    PixelConfig,
    Qwen3VLConfig,
    TextConfig,
    VisionConfig,
    load_config,
    load_pixel_config,
)
from liveedge.models.qwen3_vl.text import TextModel
from liveedge.models.qwen3_vl.vision import VisionTower

VISUAL: Final = "model.visual."
LANGUAGE: Final = "model.language_model."
HEAD: Final = "lm_head.weight"
NAMES_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Qwen3VL:
    """A loaded model."""

    config: Qwen3VLConfig
    pixels: PixelConfig
    vision: VisionTower
    text: TextModel


@dataclass(frozen=True, slots=True)
class Source:
    """The checkpoint tensors, stacked by rows, that make one parameter."""

    names: tuple[str, ...]
    rows: tuple[int, ...]  # of each
    tail: tuple[int, ...]  # the other dimensions in the checkpoint

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {n: (r, *self.tail) for n, r in zip(self.names, self.rows, strict=True)}


def load(folder: Path, *, device: torch.device, dtype: torch.dtype) -> Qwen3VL:
    """Read a checkpoint folder into modules on `device`, in evaluation mode, gradients off."""
    config = load_config(folder)
    pixels = load_pixel_config(folder, config.vision)
    with torch.device("meta"), _NoInit():  # shapes only: no random weights to throw away
        vision, text = VisionTower(config.vision), TextModel(config.text)
    with ExitStack() as stack:
        tensors = _open(folder, stack)
        _check(tensors, config, folder)
        for module, sources in (
            (vision, vision_sources(config.vision)),
            (text, text_sources(config.text)),
        ):
            _fill(module, sources, tensors, device=device, dtype=dtype)
    return Qwen3VL(config, pixels, vision, text)


def vision_sources(config: VisionConfig) -> dict[str, Source]:
    """Parameter of `VisionTower` -> its checkpoint tensors."""
    table: dict[str, Source] = {}
    dim, patch = config.hidden_size, config.patch_size
    merged = dim * config.merge_size**2
    conv_tail = (config.in_channels, config.temporal_patch_size, patch, patch)
    table["patch_embed.weight"] = Source((f"{VISUAL}patch_embed.proj.weight",), (dim,), conv_tail)
    table["patch_embed.bias"] = Source((f"{VISUAL}patch_embed.proj.bias",), (dim,), ())
    table["pos_embed.weight"] = _one(f"{VISUAL}pos_embed.weight", config.n_positions, dim)
    for number in range(config.depth):
        ours, theirs = f"blocks.{number}.", f"{VISUAL}blocks.{number}."
        _affine(table, ours + "norm1", theirs + "norm1", dim)
        _affine(table, ours + "norm2", theirs + "norm2", dim)
        _affine(table, ours + "qkv", theirs + "attn.qkv", 3 * dim, dim)
        _affine(table, ours + "proj", theirs + "attn.proj", dim, dim)
        _affine(table, ours + "fc1", theirs + "mlp.linear_fc1", config.intermediate_size, dim)
        _affine(table, ours + "fc2", theirs + "mlp.linear_fc2", dim, config.intermediate_size)
    mergers = [("merger.", f"{VISUAL}merger.", dim)]
    mergers += [
        (f"deepstack_mergers.{n}.", f"{VISUAL}deepstack_merger_list.{n}.", merged)
        for n in range(len(config.deepstack_layers))
    ]
    for ours, theirs, norm_dim in mergers:
        _affine(table, ours + "norm", theirs + "norm", norm_dim)
        _affine(table, ours + "fc1", theirs + "linear_fc1", merged, merged)
        _affine(table, ours + "fc2", theirs + "linear_fc2", config.out_hidden_size, merged)
    return table


def text_sources(config: TextConfig) -> dict[str, Source]:
    """Parameter of `TextModel` -> its checkpoint tensors."""
    dim, wide, width = config.hidden_size, config.intermediate_size, config.head_dim
    q_rows, kv_rows = config.n_heads * width, config.n_kv_heads * width
    table = {
        "embed_tokens.weight": _one(f"{LANGUAGE}embed_tokens.weight", config.vocab_size, dim),
        "norm.weight": _one(f"{LANGUAGE}norm.weight", dim),
    }
    if not config.tied:
        table["lm_head.weight"] = _one(HEAD, config.vocab_size, dim)
    for number in range(config.n_layers):
        ours, theirs = f"layers.{number}.", f"{LANGUAGE}layers.{number}."
        attention = f"{theirs}self_attn."
        table[f"{ours}attn_norm.weight"] = _one(f"{theirs}input_layernorm.weight", dim)
        table[f"{ours}mlp_norm.weight"] = _one(f"{theirs}post_attention_layernorm.weight", dim)
        table[f"{ours}q_norm.weight"] = _one(f"{attention}q_norm.weight", width)
        table[f"{ours}k_norm.weight"] = _one(f"{attention}k_norm.weight", width)
        for kind, tail in _kinds(dim, bias=config.attention_bias):
            names = tuple(f"{attention}{part}_proj.{kind}" for part in "qkv")
            table[f"{ours}qkv.{kind}"] = Source(names, (q_rows, kv_rows, kv_rows), tail)
        for kind, tail in _kinds(q_rows, bias=config.attention_bias):
            table[f"{ours}o_proj.{kind}"] = _one(f"{attention}o_proj.{kind}", dim, *tail)
        names = (f"{theirs}mlp.gate_proj.weight", f"{theirs}mlp.up_proj.weight")
        table[f"{ours}gate_up.weight"] = Source(names, (wide, wide), (dim,))
        table[f"{ours}down.weight"] = _one(f"{theirs}mlp.down_proj.weight", dim, wide)
    return table


def _one(name: str, *shape: int) -> Source:
    return Source((name,), (shape[0],), shape[1:])


def _kinds(width: int, *, bias: bool) -> list[tuple[str, tuple[int, ...]]]:
    return [("weight", (width,)), ("bias", ())] if bias else [("weight", (width,))]


def _affine(table: dict[str, Source], ours: str, theirs: str, *shape: int) -> None:
    table[f"{ours}.weight"] = _one(f"{theirs}.weight", *shape)
    table[f"{ours}.bias"] = _one(f"{theirs}.bias", shape[0])


@dataclass(frozen=True, slots=True)
class _Stored:
    """A tensor in a file that stays closed to reading until it is needed."""

    shape: tuple[int, ...]
    read: Callable[[], Tensor]


def _open(folder: Path, stack: ExitStack) -> dict[str, _Stored]:
    tensors: dict[str, _Stored] = {}
    for path in weight_files(folder):
        try:
            file: Any = stack.enter_context(safe_open(path, framework="pt"))
        except (OSError, SafetensorError) as error:
            raise CheckpointInvalid(f"cannot read {path}: {error}") from error
        for name in file.keys():  # noqa: SIM118  not a mapping
            shape = tuple(file.get_slice(name).get_shape())
            tensors[name] = _Stored(shape, partial(file.get_tensor, name))
    return tensors


def _check(tensors: Mapping[str, _Stored], config: Qwen3VLConfig, folder: Path) -> None:
    wanted: dict[str, tuple[int, ...]] = {}
    for table in (vision_sources(config.vision), text_sources(config.text)):
        for source in table.values():
            wanted |= source.shapes()
    # Tied checkpoints may repeat the head; older ones keep the rotary constants.
    ignored = {n for n in tensors if n.endswith("inv_freq") or (config.text.tied and n == HEAD)}
    for what, names in (
        ("lacks", wanted.keys() - tensors.keys()),
        ("has unknown tensors", tensors.keys() - wanted.keys() - ignored),
    ):
        if names:
            raise CheckpointInvalid(f"{folder} {what}: {_listed(names)}")
    for name, shape in wanted.items():
        if tensors[name].shape != shape:
            raise CheckpointInvalid(
                f"{folder}: {name} has shape {list(tensors[name].shape)}, "
                f"config.json asks for {list(shape)}"
            )


def _listed(names: set[str]) -> str:
    shown = sorted(names)[:NAMES_SHOWN]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


class _NoInit(TorchFunctionMode):
    """Leaves new parameters as they are: drawing on the meta device makes torch import its
    compiler, which takes seconds."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        values = kwargs or {}
        if getattr(func, "__module__", None) == nn.init.__name__:
            return values["tensor"] if "tensor" in values else args[0]
        return func(*args, **values)


def _fill(
    module: nn.Module,
    sources: Mapping[str, Source],
    tensors: Mapping[str, _Stored],
    *,
    device: torch.device,
    dtype: torch.dtype,
) -> None:
    shapes = {name: parameter.shape for name, parameter in module.named_parameters()}
    state: dict[str, Tensor] = {}
    for name, source in sources.items():
        parts = [tensors[hf_name].read().to(dtype) for hf_name in source.names]
        whole = parts[0] if len(parts) == 1 else torch.cat(parts)
        state[name] = whole.reshape(shapes[name]).to(device)
    module.load_state_dict(state, assign=True)
    module.requires_grad_(requires_grad=False).eval()
