"""What a model may import and name while it shares its process with the server and other models: tables, and nothing else.

Safe is what neither changes nor asks for anything that there is once per process, or once per thread (a model may be imported,
initialized and executed on different ones), and finds nothing by a module's name. Who holds code against these tables is
judging.py. A dotted name stands for all that lies below it; calls without arguments are written with `()`.
"""

from __future__ import annotations

__all__ = ["ONLY", "SAFE", "SAFE_LIBRARIES", "SAFE_STANDARD", "UNSAFE", "UNSAFE_ATTRIBUTES"]

#: Modules of the standard library that are safe but for the names in ONLY and UNSAFE. Not listed is not known to be safe.
SAFE_STANDARD = frozenset(
    """
    __future__ abc array ast asyncio base64 binascii bisect bz2 calendar cmath codecs collections colorsys concurrent
    configparser contextlib copy csv dataclasses datetime decimal difflib email encodings enum errno filecmp fnmatch fractions
    ftplib functools genericpath glob graphlib grp gzip hashlib heapq hmac html http imaplib importlib inspect io ipaddress
    itertools json keyword linecache logging lzma math mimetypes mmap netrc numbers operator os pathlib platform plistlib poplib
    posixpath pprint pwd queue quopri random re reprlib sched secrets select selectors shlex shutil smtplib socket ssl stat
    statistics string stringprep struct subprocess symtable sys sysconfig tarfile tempfile textwrap threading time token tokenize
    tomllib traceback types typing unicodedata urllib uuid warnings wave weakref xml xmlrpc zipfile zlib zoneinfo
    """.split()
)

#: Libraries that are safe: functions of their arguments, no state but caches, no thread, nothing that they change in others.
SAFE_LIBRARIES = frozenset(
    {
        "attr",  # attrs: makes classes, as dataclasses does
        "attrs",
        "c_python_backend_utils",
        "ml_dtypes",  # adds types to numpy, once
        "msgpack",  # parsers and writers
        "msgspec",
        "numpy",
        "orjson",
        "rapidjson",
        "simplejson",
        "triton_python_backend_utils",
        "typing_extensions",
        "ujson",
        "xxhash",
    }
)

SAFE = SAFE_STANDARD | SAFE_LIBRARIES

#: Modules and objects of which only the names listed are safe; any other changes the process, or has not been looked at.
ONLY: dict[str, frozenset[str]] = {
    name: frozenset(names.split())
    for name, names in {
        "os": """
            DirEntry F_OK O_APPEND O_CLOEXEC O_CREAT O_EXCL O_NONBLOCK O_RDONLY O_RDWR O_TRUNC O_WRONLY PathLike R_OK SEEK_CUR
            SEEK_END SEEK_SET W_OK X_OK access altsep chmod chown close cpu_count curdir defpath devnull dup environ environb
            error extsep fdatasync fdopen fsdecode fsencode fspath fstat fsync ftruncate fwalk get_terminal_size getcwd getenv
            getgid getloadavg getlogin getpid getrandom getuid getxattr isatty lchown linesep link listdir listxattr lseek
            lstat makedirs memfd_create mkdir mkfifo name open pardir path pathsep pipe popen posix_fadvise pread pwrite read
            readlink readv remove removedirs rename renames replace rmdir scandir sched_getaffinity sendfile sep stat
            stat_result statvfs strerror symlink sysconf terminal_size times truncate uname unlink urandom utime walk write
            writev
            """,
        "os.environ": "[] __contains__ __getitem__ copy get items keys values",
        "os.environb": "[] __contains__ __getitem__ copy get items keys values",
        "sys": """
            api_version base_prefix builtin_module_names byteorder copyright exc_info exception executable float_info
            getdefaultencoding getfilesystemencoding getrecursionlimit getrefcount getsizeof getswitchinterval hash_info
            hexversion implementation int_info intern is_finalizing maxsize maxunicode platform prefix stderr stdin
            stdlib_module_names stdout thread_info version version_info
            """,
        "sys.stderr.buffer": "flush write",
        "sys.stdout.buffer": "flush write",
        "sys.stdout": "buffer encoding flush isatty write writelines",
        "sys.stderr": "buffer encoding flush isatty write writelines",
        "sys.stdin": "encoding isatty",
        "importlib": "import_module invalidate_caches metadata",
        "importlib.metadata": "PackageNotFoundError metadata requires version",
        "logging.getLogger()": """
            critical debug error exception getChild getEffectiveLevel info isEnabledFor level log name warn warning
            """,
    }.items()
}

_LOOP = "acts on the server's event loop"
_RUNS = "runs code that can't be read here"
_LOOPS = [f"asyncio.{get}()" for get in ("get_event_loop", "get_running_loop")]

#: Why names aren't safe, as the rest of a sentence that begins with "<name>, which" -> the names.
_UNSAFE: dict[str, str] = {
    "reads the server's command line": "argparse fileinput getopt optparse sys.argv",
    "is about the server's terminal": """
        builtins.breakpoint builtins.input curses getpass idlelib pdb pty readline rlcompleter termios tkinter tty turtle
        """,
    "finds classes by the names of their modules": """
        importlib.resources marshal pickle pickletools pkgutil pydoc shelve
        """,
    "goes on listening when the model has gone": "http.server socketserver wsgiref xmlrpc.server",
    "starts processes that are copies of the server": """
        concurrent.futures.ProcessPoolExecutor concurrent.futures.process multiprocessing os.fork os.forkpty
        """,
    "ends the server, or acts on how it ends": """
        atexit builtins.exit builtins.quit faulthandler os._exit os.abort os.kill os.killpg signal sys.exit
        """,
    "acts on the interpreter for all models": """
        bdb cProfile gc profile sys.addaudithook sys.excepthook sys.monitoring sys.setprofile sys.setrecursionlimit
        sys.setswitchinterval sys.settrace sys.unraisablehook threading.excepthook threading.setprofile
        threading.setprofile_all_threads threading.settrace threading.settrace_all_threads threading.stack_size timeit trace
        tracemalloc
        """,
    "changes the process for all models": """
        contextlib.chdir os.chdir os.chroot os.closerange os.dup2 os.fchdir os.nice os.putenv os.sched_setaffinity os.setegid
        os.seteuid os.setgid os.setgroups os.setpgid os.setpgrp os.setpriority os.setregid os.setresgid os.setresuid
        os.setreuid os.setsid os.setuid os.umask os.unsetenv socket.sethostname time.clock_settime time.tzset
        """,
    "keeps signals from the server meanwhile": "os.system",
    "belongs to the process": """
        _thread ctypes fcntl gettext locale numpy.ctypeslib resource syslog threading.main_thread
        """,
    "decides for all models what is imported": """
        site sys.meta_path sys.modules sys.path sys.path_hooks sys.path_importer_cache zipimport
        """,
    "changes the server's log": """
        asyncio.log logging.Logger.manager logging.Logger.root logging.addLevelName logging.captureWarnings
        logging.config logging.disable logging.lastResort logging.raiseExceptions logging.root
        logging.setLogRecordFactory logging.setLoggerClass logging.shutdown
        """,
    "changes where all models print to": "contextlib.redirect_stderr contextlib.redirect_stdout",
    "is there once for all models": """
        attr.set_run_validators attr.validators.set_disabled attrs.validators.set_disabled
        calendar.LocaleHTMLCalendar calendar.LocaleTextCalendar calendar.different_locale
        calendar.setfirstweekday csv.field_size_limit decimal.DefaultContext numpy.ma.masked_print_option
        numpy.printoptions numpy.set_numeric_ops numpy.set_printoptions numpy.set_string_function
        numpy.setbufsize numpy.seterr numpy.seterrcall numpy.testing socket.setdefaulttimeout unittest
        urllib.request.install_opener warnings.catch_warnings warnings.filters warnings.filterwarnings
        warnings.resetwarnings warnings.showwarning warnings.simplefilter zoneinfo.reset_tzpath
        """,
    "is another one on each thread, and a model may run on several": """
        contextvars decimal.getcontext decimal.setcontext sqlite3 threading.local
        """,
    "sets the random numbers of all models": """
        numpy.random.mtrand numpy.random.seed numpy.random.set_bit_generator numpy.random.set_state random.seed
        random.setstate
        """,
    "registers something for all models": """
        codecs.register codecs.register_error codecs.unregister copyreg csv.register_dialect csv.unregister_dialect
        email.charset.add_alias email.charset.add_charset email.charset.add_codec mimetypes.add_type mimetypes.init
        shutil.register_archive_format shutil.register_unpack_format shutil.unregister_archive_format
        shutil.unregister_unpack_format xml.dom.registerDOMImplementation xml.etree.ElementTree.register_namespace
        """,
    _LOOP: f"""
        asyncio.all_tasks asyncio.constants asyncio.events asyncio.get_child_watcher
        asyncio.get_event_loop_policy asyncio.set_child_watcher asyncio.set_event_loop
        asyncio.set_event_loop_policy
        {" ".join(f"{loop}.{name}" for loop in _LOOPS for name in ("close", "run_forever", "set_debug", "stop"))}
        """,
    _RUNS: """
        builtins.__builtins__ builtins.__import__ builtins.__loader__ builtins.compile builtins.eval builtins.exec
        builtins.globals code codeop doctest importlib.abc importlib.machinery importlib.reload importlib.util numpy.distutils
        numpy.f2py runpy
        """,
}

#: Name -> why it isn't safe.
UNSAFE: dict[str, str] = {name: cause for cause, names in _UNSAFE.items() for name in names.split()}

#: Attributes that are not safe whatever object has them.
UNSAFE_ATTRIBUTES: dict[str, str] = {
    **dict.fromkeys("__builtins__ __globals__ __loader__ __subclasses__ f_builtins f_globals".split(), _RUNS),
    **dict.fromkeys(
        "add_signal_handler remove_signal_handler set_default_executor set_exception_handler set_task_factory".split(),
        _LOOP,
    ),
}
