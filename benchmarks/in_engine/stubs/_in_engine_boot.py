"""Run first by the shipped sglang/__init__.py, in every process of the tiny server.

Three things that have nothing to do with what is proved: modules that the tiny server imports and
never calls are stubs, transformers 5.17 does where sglang 0.5.17 pins 5.12.1, and random weights
are the same in every server.
"""

import importlib.abc
import importlib.machinery
import os
import sys
import types

STUBS = set("IPython xgrammar llguidance gguf jsonschema soundfile flashinfer".split())


class _Any(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _anything(name)


def _schema(cls, source, handler):
    from pydantic_core import core_schema

    return core_schema.any_schema()


def _anything(name):
    return _Any(
        name,
        (),
        {
            "__module__": __name__,
            "__init__": lambda self, *given, **named: None,
            "__class_getitem__": classmethod(lambda cls, item: cls),
            "__get_pydantic_core_schema__": classmethod(_schema),
        },
    )


class _Stub(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = _anything(name)
        setattr(self, name, value)
        return value


class _Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        # Without flashinfer.norm, sgl_kernel takes its own.
        if name != "flashinfer.norm" and name.split(".")[0] in STUBS:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = _Stub(spec.name)
        module.__path__ = []
        module.__version__ = "0.0.0"
        return module

    def exec_module(self, module):
        pass


class _Weights(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Random weights by the parameter, norms 1: selections then differ by layer and step."""

    NAME = "sglang.srt.model_loader.weight_utils"

    def find_spec(self, name, path=None, target=None):
        if name != self.NAME:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        self.inner, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec):
        return self.inner.create_module(spec)

    def exec_module(self, module):
        self.inner.exec_module(module)
        scale = float(os.environ.get("IN_ENGINE_WEIGHTS", "0.03"))

        def seeded(model, low=-1e-3, high=1e-3, seed=1234):
            import torch

            for i, (name, weight) in enumerate(model.state_dict().items()):
                if not torch.is_floating_point(weight):
                    continue
                if "norm" in name:
                    weight.fill_(0.0 if name.endswith("bias") else 1.0)
                    continue
                draw = torch.Generator(device=weight.device)
                draw.manual_seed(seed + i)
                weight.data.normal_(0, 1.0 if "embed" in name else scale, generator=draw)

        module.initialize_dummy_weights = seeded


def _let_transformers_register_again():
    from transformers.models.auto import auto_factory, configuration_auto

    mapping, lazy = configuration_auto.CONFIG_MAPPING.__class__, auto_factory._LazyAutoMapping
    for holder in (mapping, lazy):
        inner = holder.register

        def register(self, key, value, exist_ok=False, inner=inner):
            return inner(self, key, value, exist_ok=True)

        holder.register = register


sys.meta_path.append(_Stubs())
_let_transformers_register_again()
sys.meta_path.insert(0, _Weights())
