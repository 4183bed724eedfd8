"""May a model share the server's process? What its source says, in its own words; none of it is ever run."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from kernel_python.evidence import SAFE_REASON, Evidence, examine

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
    "walrus": "if (x := f()): x.y = 3",
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
    "import logging\nlogging.basicConfig(level=10)": "uses logging.basicConfig :2, which changes the server's log",
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
    "import os\ngetattr(os, name)": "hands on the module os :2, so that it can't be seen what is done with it",
    "import os\nvars(os)": "hands on the module os :2, so that it can't be seen what is done with it",
    "import os\nself.os = other.os = os": "hands on the module os :2, so that it can't be seen what is done with it",
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
    "import ssl\nssl._create_default_https_context = f": "changes ssl._create_default_https_context :2, which all models share",
    "import numpy as np\nnp.random.seed(0)": "uses numpy.random.seed :2, which sets the random numbers of all models",
    "from numpy import random\nrandom.seed(0)": "uses numpy.random.seed :2, which sets the random numbers of all models",
    "import random\nrandom.seed(0)": "uses random.seed :2, which sets the random numbers of all models",
    "import numpy as np\nnp.load(f, allow_pickle=True)": (
        "calls numpy.load :2 with allow_pickle, which finds classes by the names of their modules"
    ),
    "import subprocess\nsubprocess.run(x, preexec_fn=f)": "calls subprocess.run :2 with preexec_fn, in a copy of the server",
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
        "uses threading.local :2, which is another one on each thread, as `initialize` and `execute` are"
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
