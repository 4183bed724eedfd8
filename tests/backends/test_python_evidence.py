"""May a model share the server's process? What its source says, in its own words; none of it is ever run."""

from __future__ import annotations

import itertools
import os
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernel_python.loading.evidence import SAFE_REASON, Evidence, examine
from kernel_python.loading.modules import PrivateModules
from kernel_python.loading.sources import FILE_BYTES, FILES, Program

Examine = Callable[..., Evidence]


@pytest.fixture
def of(tmp_path: Path) -> Examine:
    """Return what the examination of a model text comes to. `files`: path in the model folder -> text."""

    def examined(code: str | bytes, files: Mapping[str, str | bytes] = {}, shared: str = "") -> Evidence:
        folder = tmp_path / "m"
        for path, text in {**files, "1/model.py": code}.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            data = text if isinstance(text, bytes) else textwrap.dedent(text).encode()
            (folder / path).write_bytes(data)
        return examine(folder / "1" / "model.py", folder / "1", folder, frozenset(shared.split()))

    return examined


SHARED = {
    "glue": """
        import asyncio, base64, io, json, logging, math, os, queue, random, re, struct, sys, threading, time
        import collections, dataclasses, functools, pathlib, typing
        import numpy as np
        import triton_python_backend_utils as pb_utils
        log = logging.getLogger(__name__)
        class TritonPythonModel:
            def initialize(self, args):
                self.config = json.loads(args["model_config"])
                self.lock = threading.Lock()
                self.folder = pathlib.Path(args["model_repository"])
                self.threads = int(os.environ.get("THREADS", "1")) + int(os.environ["N"]) + len(os.listdir(self.folder))
                if "DEBUG" in os.environ:
                    print(dict(os.environ), file=sys.stderr, flush=True)
            async def execute(self, requests):
                log.info("%s", random.random())
                time.sleep(0.001)
                await asyncio.gather(*(r.async_exec() for r in requests))
                requests[0].exec()
                rng = np.random.default_rng(1)
                table = np.r_[0, 1]
                table[0] = rng.random()
                getattr(self, "x" + "y", None)
                setattr(self, "z" + "y", None)
                np.zeros(3)[0] = 1
                return re.compile("x").match("x")
        """,
    "aliases": "import numpy as np\nxp = np\nzeros = xp.zeros\nx = zeros(3)\nx.shape = (3, 1)",
    "a local name like a module's": "import queue, array\ndef f(queue, array):\n    queue.x = array\n    return [queue]",
    "a local name like a builtin's": "from re import compile\ndef exec(x): return x\ncompile('x'); exec(1)",
    "types only": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\ndef f(x: torch.Tensor): ...",
    "types only, by module": "import typing\nif typing.TYPE_CHECKING:\n    import torch",
    "run as a program": "if __name__ == '__main__':\n    import argparse, sys\n    sys.exit(argparse)",
    "attributes by constant names": "import numpy as np, os\ngetattr(np, 'float32')(1); getattr(os, 'sep'); hasattr(os, 'fork')",
    "import by a constant name": "import importlib\nnp = importlib.import_module('numpy')\nnp.zeros(3)",
    "metadata": "import importlib.metadata\nimportlib.metadata.version('numpy')",
    "a program": "import subprocess\nsubprocess.run(['ls'], check=True, capture_output=True, timeout=3)",
    "a program, by another name": "from subprocess import check_output as run\nrun(['ls'])",
    "a program, awaited": "import asyncio\nasync def f(p): await asyncio.create_subprocess_exec('ls', *p, stdout=-1)",
    "threads": "from concurrent.futures import ThreadPoolExecutor\nThreadPoolExecutor(3)",
    "a log of its own look": "import logging\nlogging.basicConfig(level=logging.INFO, format='x')\nlogging.basicConfig()",
    "binary output": "import sys\nsys.stdout.buffer.write(b'')\nprint(file=sys.stderr)",
    "a logger": "import logging\nl = logging.getLogger('mine')\nl.setLevel(10)\nl.addHandler(logging.StreamHandler())",
    "the root logger, used": "import logging\nlogging.getLogger().info('x')\nlogging.info('x')",
    "the loop": "import asyncio\nasync def f():\n    loop = asyncio.get_event_loop()\n    loop.call_later(1, print)",
    "a loop of its own": "import asyncio\ndef execute(): asyncio.run(x()); asyncio.new_event_loop().run_until_complete(x())",
    "arrays": "import numpy as np\nnp.load('x.npy'); np.load('x.npy', allow_pickle=False); np.load('x', None)",
    "literals": "import ast\nast.literal_eval('1')",
    "a name of its own": "def chdir(): ...\nclass os: chdir = chdir\nos.chdir()",
    "a bare except": "try:\n    f()\nexcept SystemExit:\n    raise",
    "everything of a plain module": "from math import *\nfrom typing import *\nsqrt(2)",
    "a closed file": "import os, tempfile\nfd, path = tempfile.mkstemp()\nos.close(fd)",
    "bound in circles": "a = b\nb = a\nx = x.y\ndef f():\n    global g\n    g = g",
    "msgpack": "import msgpack, orjson, typing_extensions",
    "pattern": "match x:\n    case {'a': os, **rest}:\n        os.chdir()\n    case [*os]:\n        os.chdir()\n",
    "a harmless module handed on": "import json\nserializer(json)",
    "another value for a name": "import string\nletters = string.ascii_letters\nletters += 'ä'",
    "a field that is taken back": "import codecs\ndef f(self):\n    self.g = codecs.encode\n    del self.g",
    "its own variables": "vars(self)['x'] = 1",
    "walrus": "if (x := f()): x.y = 3",
    "collections of its own": """
        import collections
        import hashlib
        import numpy as np
        NAMES = []
        NAMES.append("a")
        class Counts(collections.OrderedDict):
            def more(self, other):
                collections.OrderedDict.update(self, other)
                dict.update(self, other)
        def all_of(parts, a):
            digest = hashlib.sha256()
            digest.update(parts)
            collections.defaultdict(list).setdefault(1, []).append(2)
            return np.append(a, 1), np.ma.append(a, a), np.insert(a, 0, 1)
        """,
}


@pytest.mark.parametrize("code", SHARED.values(), ids=SHARED.keys())
def test_what_is_safe_to_share(of: Examine, code: str) -> None:
    assert of(code) == Evidence(True, SAFE_REASON, of(code).asynchronous)


#: code -> the reason, in which `:n` stands for `(model.py:n)`
KEPT_APART = {
    "import torch": "imports torch :1",
    "import numpy\nimport scipy.signal as s": "imports scipy.signal :2",
    "def f():\n    from transformers import pipeline": "imports transformers :2",
    "try:\n    import torch\nexcept ImportError:\n    torch = None": "imports torch :2",
    "if TYPE_CHECKING:\n    pass\nelse:\n    import torch": "imports torch :4",
    "import os\nos.environ['X'] = '1'\nimport torch": "imports torch :3",
    "import importlib\nimportlib.import_module('torch')": "imports torch :2",
    "from importlib import import_module\ntorch = import_module('torch')": "imports torch :2",
    "import pickle": "imports pickle :1, which finds classes by the names of their modules",
    "from multiprocessing import Pool": "imports multiprocessing :1, which starts processes that are copies of the server",
    "import logging.config": "imports logging.config :1, which changes the server's log",
    "import logging\nlogging.config.dictConfig({})": "uses logging.config :2, which changes the server's log",
    "import logging\nlogging.basicConfig(level=10)": "calls logging.basicConfig :2 for lines that the server's log leaves out",
    "import logging\nlogging.basicConfig(level=l)": "calls logging.basicConfig :2 for lines that the server's log leaves out",
    "import logging\nlogging.basicConfig(force=True, filename='x')": (
        "calls logging.basicConfig :2 with force, filename, which changes the server's log"
    ),
    "import sys, io\nio.TextIOWrapper(sys.stdout.buffer)": (
        "hands on sys.stdout.buffer :2, so that it can't be seen what is done with it"
    ),
    "import logging\nlogging.getLogger().setLevel(10)": "uses logging.getLogger().setLevel :2, not known to be safe to share",
    "import logging\nroot = logging.getLogger('')\nroot.handlers = []": (
        "uses logging.getLogger().handlers :3, not known to be safe to share"
    ),
    "import logging\nclass M:\n    def f(self):\n        self.log = logging.getLogger()\n        self.log.addHandler(1)": (
        "uses logging.getLogger().addHandler :5, not known to be safe to share"
    ),
    "import logging\nlogging.getLogger('kernel').disabled = True": "calls logging.getLogger :2 for kernel, the server's",
    "import os\nos.chdir('/')": "uses os.chdir :2, which changes the process for all models",
    "import os as o\no.fork()": "uses os.fork :2, which starts processes that are copies of the server",
    "from os import chdir as c": "uses os.chdir :1, which changes the process for all models",
    "import os\no = os\np = o\np._exit(1)": "uses os._exit :4, which ends the server, or acts on how it ends",
    "import os\nf = os.chdir": "uses os.chdir :2, which changes the process for all models",
    "import os\nmap(os.kill, x)": "uses os.kill :2, which ends the server, or acts on how it ends",
    "import os\ngetattr(os, 'kill')(1, 2)": "uses os.kill :2, which ends the server, or acts on how it ends",
    "import os\ngetattr(os, name)": "hands on os :2, so that it can't be seen what is done with it",
    "import os\nf(os)": "hands on os :2, so that it can't be seen what is done with it",
    "import json\nvars(json)['loads'] = f": "uses json.__dict__ :2, not known to be safe to share",
    "import os\nself.os = other.os = os": "hands on os :2, so that it can't be seen what is done with it",
    "import os\nclass M:\n    os = os\n    def f(self): self.os.umask(0)": (
        "uses os.umask :4, which changes the process for all models"
    ),
    "import os\nos.login_tty(1)": "uses os.login_tty :2, not known to be safe to share",
    "import os\nos.environ['X'] = '1'": "changes os.environ :2, which all models share",
    "import os\nos.environ.setdefault('X', '1')": "uses os.environ.setdefault :2, not known to be safe to share",
    "from os import environ as e\ne |= {}": "changes os.environ :2, which all models share",
    "import os\nenv = os.environ\ndel env['X']": "changes os.environ :3, which all models share",
    "import os\nos.close(1)": "calls os.close :2 of 1, which is the server's",
    "import pathlib\npathlib.os.chdir('/')": "uses os.chdir :2, which changes the process for all models",
    "import sys\nsys.path.insert(0, 'x')": "uses sys.path :2, which decides for all models what is imported",
    "import sys\nsys.stdout = open('x')": "changes sys.stdout :2, which all models share",
    "import sys\nsys.stdout.close()": "uses sys.stdout.close :2, not known to be safe to share",
    "import sys\nsys.exit(1)": "uses sys.exit :2, which ends the server, or acts on how it ends",
    "def f():\n    raise SystemExit": "raises SystemExit (model.py:2), which ends the server",
    "import numpy as np\nnp.float = float": "changes numpy.float :2, which all models share",
    "import json\nsetattr(json, 'loads', f)": "changes json.loads :2, which all models share",
    "from json import JSONEncoder\nJSONEncoder.default = f": "changes json.JSONEncoder.default :2, which all models share",
    "import urllib.parse\nurllib.parse.uses_netloc.append('s3')": "changes urllib.parse.uses_netloc :2, which all models share",
    "from html.entities import name2codepoint as n\nn.update(x=1)": (
        "changes html.entities.name2codepoint :2, which all models share"
    ),
    "import mimetypes as m\nm.types_map.clear()": "changes mimetypes.types_map :2, which all models share",
    "import attr\nattr.set_run_validators(False)": "uses attr.set_run_validators :2, which is there once for all models",
    "import ssl\nssl._create_default_https_context = f": (
        "uses ssl._create_default_https_context :2, not known to be safe to share"
    ),
    "import numpy as np\nnp.random.seed(0)": "uses numpy.random.seed :2, which sets the random numbers of all models",
    "from numpy import random\nrandom.seed(0)": "uses numpy.random.seed :2, which sets the random numbers of all models",
    "import random\nrandom.seed(0)": "uses random.seed :2, which sets the random numbers of all models",
    "import numpy as np\nnp.load(f, allow_pickle=True)": (
        "calls numpy.load :2 with allow_pickle, which finds classes by the names of their modules"
    ),
    "import subprocess\nsubprocess.run(x, preexec_fn=f)": "calls subprocess.run :2 with preexec_fn",
    "import subprocess as s\nr = s.Popen\nr(x, **more)": "calls subprocess.Popen :3 with arguments that can't be seen",
    "import subprocess\nmap(subprocess.call, x)": (
        "hands on subprocess.call :2, so that it can't be seen how it is called"
    ),
    "import warnings\nwarnings.filterwarnings('ignore')": "uses warnings.filterwarnings :2, which is there once for all models",
    "import asyncio\nasyncio.run(f())": "calls asyncio.run :2 while it is imported",
    "import asyncio\ndef f(): asyncio.get_event_loop()": "calls asyncio.get_event_loop :2 outside of a coroutine",
    "import asyncio\nasync def f():\n    loop = asyncio.get_running_loop()\n    loop.stop()": (
        "uses asyncio.get_running_loop().stop :4, which acts on the server's event loop"
    ),
    "import asyncio\nasync def f(l): l.set_task_factory(x)": (
        "uses set_task_factory :2, which acts on the server's event loop"
    ),
    "exec('x')": "uses exec :1, which runs code that can't be read here",
    "e = eval": "uses eval :1, which runs code that can't be read here",
    "exec = exec": "uses exec :1, which runs code that can't be read here",
    "__import__('os').chdir('/')": "uses __import__ :1, which runs code that can't be read here",
    "globals()['x'] = 1": "uses globals :1, which runs code that can't be read here",
    "f.__globals__['os'].chdir('/')": "uses __globals__ :1, which runs code that can't be read here",
    "import importlib\nimportlib.import_module(name)": "calls importlib.import_module :2 with a name that can't be seen",
    "from importlib import import_module as load\nload('os').chdir('/')": (
        "calls importlib.import_module :2 with a name that can't be seen"
    ),
    "from torch import *": "imports torch :1",
    "from os import *": "imports everything of os :1, some of it not known to be safe to share",
    "import builtins": "imports builtins :1",
    "import kernel": "imports kernel :1",
    "input()": "uses input :1, which is about the server's terminal",
    "quit()": "uses quit :1, which ends the server, or acts on how it ends",
    "import threading\nx = threading.local()": (
        "uses threading.local :2, which is another one on each thread, and a model may run on several"
    ),
    "def f(:": "model.py, line 1 can't be read: invalid syntax",
    "x = '\\": "model.py, line 1 can't be read: unterminated string literal (detected at line 1)",
}


@pytest.mark.parametrize(("code", "reason"), KEPT_APART.items())
def test_what_is_not(of: Examine, code: str, reason: str) -> None:
    words = reason.split()
    want = " ".join(f"(model.py{word})" if word[0] == ":" and word.strip(":,").isdigit() else word for word in words)
    assert of(code).reason == want.replace(",)", "),")
    assert not of(code).shareable


# -- the model's own modules ------------------------------------------------------------------------------------------------

#: files in the model folder, `1/model.py` among them -> the reason; "" for none
FOLLOWED = {
    "a helper": ({"1/model.py": "import helper", "1/helper.py": "import torch"}, "imports torch (helper.py:1)"),
    "a helper in the model folder": (
        {"1/model.py": "from helper import say", "helper.py": "\nimport torch"},
        "imports torch (helper.py:2)",
    ),
    "the version's before the model's": (
        {"1/model.py": "import helper", "1/helper.py": "", "helper.py": "import torch"},
        "",
    ),
    "relative": (
        {"1/model.py": "from .helper import say", "1/helper.py": "import torch"},
        "imports torch (helper.py:1)",
    ),
    "relative, the module": (
        {"1/model.py": "from . import helper", "helper.py": "import torch"},
        "imports torch (helper.py:1)",
    ),
    "a package": (
        {"1/model.py": "import pkg.deep", "1/pkg/__init__.py": "", "1/pkg/deep.py": "import torch"},
        "imports torch (pkg/deep.py:1)",
    ),
    "what a package imports": (
        {"1/model.py": "from pkg import deep", "1/pkg/__init__.py": "import torch"},
        "imports torch (pkg/__init__.py:1)",
    ),
    "from a package": (
        {"1/model.py": "from pkg import deep", "1/pkg/__init__.py": "", "1/pkg/deep.py": "import torch"},
        "imports torch (pkg/deep.py:1)",
    ),
    "up from a package": (
        {
            "1/model.py": "import pkg.deep.er",
            "1/pkg/__init__.py": "",
            "1/pkg/other.py": "import torch",
            "1/pkg/deep/__init__.py": "",
            "1/pkg/deep/er.py": "from ..other import x",
        },
        "imports torch (pkg/other.py:1)",
    ),
    "a folder without __init__": (
        {"1/model.py": "import inner.deep", "inner/deep.py": "import torch"},
        "imports torch (inner/deep.py:1)",
    ),
    "a folder named like a known module": ({"1/model.py": "import json.deep", "json/deep.py": "import torch"}, ""),
    "one's own json": ({"1/model.py": "import json", "1/json.py": "import torch"}, "imports torch (json.py:1)"),
    "a stand-in for pb_utils": (
        {
            "1/model.py": "import triton_python_backend_utils",
            "1/triton_python_backend_utils.py": "import torch",
        },
        "",
    ),
    "by a constant name": (
        {"1/model.py": "import importlib\nimportlib.import_module('pkg.deep')", "pkg/deep.py": "import torch"},
        "imports torch (pkg/deep.py:1)",
    ),
    "everything of a helper": (
        {"1/model.py": "from helper import *", "1/helper.py": "import torch"},
        "imports torch (helper.py:1)",
    ),
    "everything of a package that lists it": (
        {"1/model.py": "from pkg import *", "1/pkg/__init__.py": "__all__ = ['deep']", "1/pkg/deep.py": "import torch"},
        "imports torch (pkg/deep.py:1)",
    ),
    "in circles": ({"1/model.py": "import a", "1/a.py": "import b", "1/b.py": "import a, model"}, ""),
    "not imported": ({"1/model.py": "", "1/train.py": "import torch"}, ""),
    "a name out of a helper": (
        {"1/model.py": "from helper import o\no.fork()", "1/helper.py": "import os\no = os"},
        "uses os.fork (model.py:2), which starts processes that are copies of the server",
    ),
    "a module out of a helper": (
        {"1/model.py": "import pkg.helper\npkg.helper.os.fork()", "1/pkg/helper.py": "import os"},
        "uses os.fork (model.py:2), which starts processes that are copies of the server",
    ),
    "a name out of everything": (
        {"1/model.py": "from a import *\nsystem.fork()", "1/a.py": "from b import *", "1/b.py": "import os as system"},
        "uses os.fork (model.py:2), which starts processes that are copies of the server",
    ),
    "a field that another file has filled": (
        {
            "1/model.py": "from base import Base\nclass M(Base):\n    def f(self): self.os.fork()",
            "1/base.py": "import os\nclass Base:\n    def __init__(self): self.os = os",
        },
        "uses os.fork (model.py:3), which starts processes that are copies of the server",
    ),
    "a helper that is changed": (
        {"1/model.py": "import helper\nhelper.x = 1\nsetattr(helper, n, 1)\nf(helper)", "1/helper.py": ""},
        "",
    ),
    "a compiled module": (
        {"1/model.py": "import fast", "1/fast.abi3.so": "", "1/fast.cpython-313-darwin.so": "", "1/fast.so": ""},
        "imports fast (model.py:1), which is compiled",
    ),
    "byte code": ({"1/model.py": "import fast", "1/fast.pyc": ""}, "imports fast (model.py:1), which is compiled"),
    "a helper that is broken": (
        {"1/model.py": "import helper", "1/helper.py": "x = \n"},
        "helper.py, line 1 can't be read: invalid syntax",
    ),
}


@pytest.mark.parametrize(("files", "reason"), FOLLOWED.values(), ids=FOLLOWED.keys())
def test_imports_are_followed(of: Examine, files: dict[str, str], reason: str) -> None:
    found = of(files["1/model.py"], files)
    assert (found.reason, found.shareable) == (reason or SAFE_REASON, not reason)


def test_modules_that_the_server_is_told_are_safe(of: Examine) -> None:
    code = "import torch.nn as nn, pickle, os\nnn.x = 1\nos.umask(0)"
    assert of(code, shared="torch").reason.startswith("imports pickle (model.py:1)")
    assert of(code, shared="torch pickle").reason.startswith("uses os.umask (model.py:3)")
    assert of(code, shared="torch.nn pickle os.umask").shareable
    assert of("import torch.nn, torch.cuda", shared="torch.nn").reason == "imports torch.cuda (model.py:1)"
    assert not of("import torchvision", shared="torch").shareable


#: How a name comes to stand for what another does: code, and how it is written from then on.
ALIASES = [
    ("{n} = {e}", "{n}"),
    ("({n} := {e})", "{n}"),
    ("{n}: object = {e}", "{n}"),
    ("{n} = {e} if x else None", "{n}"),
    ("{n} = x or {e}", "{n}"),
    ("a = {n} = {e}", "{n}"),
    ("def f(self):\n    self.{n} = {e}", "self.{n}"),
    ("class A:\n    {n} = {e}", "self.{n}"),
    ("def f():\n    global {n}\n    {n} = {e}", "{n}"),
    ("def f():\n    {n} = 1\n    def g():\n        nonlocal {n}\n        {n} = 2\n{n} = {e}", "{n}"),
    ("pass", "getattr(helper, 'os')"),
    ("from helper import os as {n}", "{n}"),
    ("from helper import *", "system"),
    ("import pathlib", "pathlib.os"),
    ("import importlib\n{n} = importlib.import_module('os')", "{n}"),
]

USES = [
    "{e}.chdir('/')",
    "x = [{e}.fork]",
    "getattr({e}, 'kill')(1, 2)",
    "setattr({e}, 'sep', '')",
    "{e}.environ['A'] = ''",
    "del {e}.environ['A']",
    "{e}.environ.update(A='')",
    "{e}.x, y = 1, 2",
    "for {e}.sep in x: pass",
    "with x as {e}.sep: pass",
    "print({e})",
    "vars({e})['sep'] = ''",
    "def f(m={e}): ...",
    "def f(): return {e}",
    "f'{{{e}.umask(0)}}'",
    "async def f(): await {e}.system('x')",
    "lambda: {e}.setsid()",
    "[{e}.nice(1) for x in y]",
    "@{e}._exit\ndef f(): ...",
]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(ALIASES), max_size=5), st.sampled_from(USES))
def test_no_name_hides_what_it_stands_for(of: Examine, aliases: list[tuple[str, str]], use: str) -> None:
    lines, written = ["import os, helper"], "os"
    for number, (code, after) in enumerate(aliases):
        lines.append(code.format(n=f"n{number}", e=written))
        written = after.format(n=f"n{number}")
    lines.append(use.format(e=written))
    code = "\n".join(lines)
    assert not of(code, {"1/helper.py": "import os, os as system"}).shareable, code


def test_the_same_modules_are_found_as_when_it_runs(tmp_path: Path) -> None:
    """modules.py imports them, and their names in sys.modules are those that were followed."""
    files = {
        "1/model.py": "import a, b.c, both, data, json, only.deep\nfrom p import q\nfrom . import r\nfrom s import *\n"
        "import importlib\nimportlib.import_module('t.u')\nimport triton_python_backend_utils\nfrom p.w import attribute",
        "1/a.py": "from .b.d import x\nimport p",
        "1/b/__init__.py": "",
        "1/b/c.py": "from . import e\nfrom ..both import name",
        "1/b/d.py": "x = 1",
        "1/b/e.py": "",
        "1/both.py": "name = 1",
        "both.py": "",
        "1/data/data.txt": "",
        "data/inner.py": "",
        "data.py": "",
        "json/data.txt": "",
        "only/deep.py": "",
        "1/p/__init__.py": "q = 1",
        "1/p/w.py": "attribute = 1",
        "r.py": "",
        "s/__init__.py": "__all__ = ['v']",
        "s/v.py": "",
        "t/u.py": "",
        "1/triton_python_backend_utils.py": "",
        "1/unused.py": "",
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    program = Program(tmp_path / "1/model.py", tmp_path / "1", tmp_path, lambda shown, one: None)
    assert program.doubt is None
    modules = PrivateModules(tmp_path / "1", tmp_path, object())
    try:
        modules.load_main(tmp_path / "1/model.py")
        within = modules.package + "."
        loaded = {name.removeprefix(within) for name in sys.modules if name.startswith(within)} - {"model"}
    finally:
        modules.remove()
    assert {".".join(name) for name in program.own} == loaded


# -- async def execute ------------------------------------------------------------------------------------------------------

M = "class TritonPythonModel"

EXECUTES = {
    f"{M}:\n    def execute(self, r): ...": False,
    f"{M}:\n    async def execute(self, r): ...": True,
    f"{M}(object):\n    async def execute(self, r): ...": True,
    f"{M}:\n    @retry\n    def execute(self, r): ...": None,
    f"{M}:\n    execute = f": None,
    f"{M}:\n    if x:\n        async def execute(self, r): ...": None,
    f"{M}: ...": None,
    "x = 1": None,
    f"class B:\n    async def execute(self, r): ...\n{M}(B): ...": True,
    f"class A: ...\nclass B(A):\n    def execute(self, r): ...\n{M}(A, B): ...": False,
    f"{M}(f()): ...": None,
    f"{M}(TritonPythonModel): ...": None,
    f"if x:\n    {M}:\n        def execute(self, r): ...\nelse:\n    {M}:\n        async def execute(self, r): ...": None,
    "class B:\n    async def execute(self, r): ...\nTritonPythonModel = B": True,
    "from base import Base\nTritonPythonModel = Base": True,
    "from base import Base as TritonPythonModel": True,
    f"from base import Plain\n{M}(Plain): ...": False,
    f"import base\n{M}(base.Base): ...": True,
    f"import numpy\n{M}(numpy.ndarray): ...": None,
    "def f(:": None,
}


@pytest.mark.parametrize(("code", "asynchronous"), EXECUTES.items())
def test_whether_execute_is_a_coroutine(of: Examine, code: str, asynchronous: bool | None) -> None:
    base = "class Base:\n    async def execute(self, r): ...\nclass Plain:\n    def execute(self, r): ..."
    assert of(code, {"1/base.py": base}).asynchronous is asynchronous


# -- whatever the files hold --------------------------------------------------------------------------------------------------


def test_limits(of: Examine, tmp_path: Path) -> None:
    long = b"#" + b" " * FILE_BYTES
    assert of(long).reason == "model.py is longer than 128 KiB"
    assert of("import helper", {"1/helper.py": long}).reason == "helper.py is longer than 128 KiB"
    several = {f"1/m{i}.py": long[:-1] for i in range(5)}
    imports = "import " + ", ".join(f"m{i}" for i in range(FILES))
    assert of(imports, several).reason == "its files are longer than 512 KiB together"
    small = {f"1/m{i}.py": "" for i in range(FILES)}
    assert of(imports, small).reason == "consists of more than 200 files"
    assert of("import " + ".".join("a" * 101)).reason == "imports a name of 101 parts (model.py:1)"
    many = "\n".join(f"import os\nx = os.path.a{i}" for i in range(20))
    assert of(many + "\nx.y").reason == "the name x stands for more than 16 things in it"


def test_files_that_are_none(of: Examine, tmp_path: Path) -> None:
    assert examine(tmp_path / "no.py", tmp_path, tmp_path).reason == "no.py can't be read: No such file or directory"
    (tmp_path / "folder.py").mkdir()
    assert examine(tmp_path / "folder.py", tmp_path, tmp_path).reason == "folder.py can't be read: Is a directory"
    os.mkfifo(tmp_path / "pipe.py")
    assert examine(tmp_path / "pipe.py", tmp_path, tmp_path).reason == "pipe.py can't be read: it is no file"
    assert of(b"\xff\xfe\x00").reason.startswith("model.py")
    assert of("# coding: latin-1\nx = 'ä'".encode("latin-1")).shareable


DEEP = {
    "parentheses": "(" * 5000 + ")" * 5000,
    "lists": "[" * 150 + "]" * 150,
    "sums": "+".join("1" * 50_000),
    "signs": "-" * 100_000 + "1",
    "attributes": "x" + ".a" * 50_000,
    "calls": "x" + "()" * 50_000,
    "items": "x" + "[0]" * 40_000,
    "conditions": "1 if x else " * 10_000 + "1",
    "otherwise": "if x: pass\n" + "elif x: pass\n" * 9_000,
    "lambdas": "lambda: " * 15_000 + "1",
    "names in a row": "".join(f"a{i + 1} = a{i}\n" for i in range(7_000)) + "a7000()",
    "names in a row, from a module": "import os\na0 = os\n" + "".join(f"a{i + 1} = a{i}.x\n" for i in range(5_000)),
    "names in circles": "".join(f"a{i % 50} = a{(i * 7 + i // 50) % 50}\n" for i in range(3_000)) + "a1()",
    "classes in a row": "".join(f"class A{i}(A{i + 1}): ...\n" for i in range(5_000)) + "TritonPythonModel = A0",
    "classes of classes": "".join(f"class A{i}(A{i + 1}, A{i + 1}, A{i + 1}): ...\n" for i in range(90))
    + "TritonPythonModel = A0",
    "targets": "a = " * 30_000 + "1",
    "getattr": "getattr(" * 90 + "x" + ", 'a')" * 90,
    "setattr": "setattr(" * 90 + "x" + ", 'a', 1)" * 90,
    "a long name": "import " + "x" * 100_000,
    "odd names": "import importlib\n"
    + "\n".join(f"importlib.import_module({name!r})" for name in ("", ".", "a..b", "/", "\0", "\ud800")),
    "nothing": "",
    "a null byte": "x = 1\0",
}


@pytest.mark.parametrize("code", DEEP.values(), ids=DEEP.keys())
def test_whatever_comes_is_answered(of: Examine, code: str) -> None:
    found = of(code.encode(errors="backslashreplace"))
    assert found.reason and isinstance(found.shareable, bool)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_garbage_is_answered(of: Examine, data: st.DataObject) -> None:
    """Texts of the tables above, cut and put together at random, some of which are Python."""
    lines = [line for code in (*SHARED.values(), *KEPT_APART, *EXECUTES) for line in textwrap.dedent(code).split("\n")]
    pieces = data.draw(
        st.lists(st.one_of(st.sampled_from(lines), st.text(max_size=8), st.sampled_from(["(", "'", "\t"])))
    )
    assert of("\n".join(pieces).encode(errors="replace")).reason
    assert of(data.draw(st.binary(max_size=40))).reason


#: What grows with its number: in a row, all on one name, and in circles.
GROWING = {
    "imports": "import a{i}\n",
    "own imports": "from helper import a{i} as b{i}\nb{i}.x()\n",
    "everything": "from helper import *\na{i}.x()\n",
    "names": "a{i} = os.path\na{i}.x()\n",
    "one name": "x = y\ny = x\nx.z()\n",
    "fields": "class A{i}:\n    def f(self): self.a{i} = self.b = self.a{i}.c\n",
    "functions": "def f{i}(a, b=os.path, *c): return [a.x for d in c if (e := os.sep)]\n",
    "stores": "os.path.a[{i}] = 1\n",
    "mentions": "np.zeros({i}).reshape(-1)[0].x.y = f'{{a.b(os.path)}}'\n",
}


@pytest.mark.parametrize("line", GROWING.values(), ids=GROWING.keys())
def test_its_work_is_linear(of: Examine, line: str) -> None:
    """Counted in calls of functions, which takes the same every time."""

    def calls(count: int) -> int:
        code = "import os\nimport numpy as np\n" + "".join(line.format(i=i) for i in range(count))
        counter = itertools.count()
        before = sys.getprofile()
        sys.setprofile(lambda frame, event, argument: next(counter) if event == "call" else None)
        try:
            of(
                code,
                {"1/helper.py": "from helper import *\nimport os"},
                shared=" ".join(f"a{i}" for i in range(count)) + " os.path",
            )
        finally:
            sys.setprofile(before)
        return next(counter)

    assert calls(800) < 2.3 * calls(400)
