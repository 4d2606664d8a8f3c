"""The command line: parse, dispatch. Nobody imports it."""

from __future__ import annotations

import argparse
import difflib
import errno
import importlib
import io
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

from ressl.commands import COMMANDS
from ressl.engine.building import dismiss
from ressl.engine.compiling import keep_compiled, small_workspaces, wait_briefly, wake_card, wants_card
from ressl.engine.scouts import recall, send
from ressl.engine.signals import Terminated, tidy_exit
from ressl.errors import ResslError, printable, unknown
from ressl.files import is_litter


class Parser(argparse.ArgumentParser):
    """argparse that says what is wrong in one sentence."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        kwargs["allow_abbrev"] = False
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise ResslError(f"{message.rstrip('.')}; see '{self.prog} --help'")


def build_parser(asked: str | None = None) -> Parser:
    """The parser; only the command that is asked for gets its options, because listing them imports the whole house."""
    parser = Parser(
        prog="ressl",
        description="Relational self-supervised learning: pre-train image backbones without labels.",
        epilog="start with:\n  ressl demo                       no data, no GPU, about two minutes\n"
        "  ressl pretrain cifar10           the paper's recipe\n"
        "  ressl pretrain --data photos/    your own pictures\n"
        "  ressl embed RUN photos/ -o f.npy what it learned, as vectors; then ressl search, ressl export\n"
        "  ressl COMMAND --help             what a command can do",
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary)
        if name == asked:
            _module(name).add_options(command)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    for stream in (sys.stdout, sys.stderr):  # file names may hold bytes that are no text
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    words = list(sys.argv[1:] if arguments is None else arguments)
    keep_compiled()
    small_workspaces()
    wait_briefly()
    try:
        with tidy_exit(), warnings.catch_warnings():
            warnings.showwarning = _warn  # type: ignore[assignment]
            if wants_card(words):
                wake_card()
                if words[0] == "pretrain":
                    send()
            return _main(words)
    except ResslError as error:
        print(f"ressl: {_who()}{printable(str(error))}", file=sys.stderr)
        return error.exit_code
    except Terminated as stop:
        print(f"ressl: {_who()}stopped", file=sys.stderr)
        return stop.exit_code
    except KeyboardInterrupt:
        print(f"ressl: {_who()}stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `ressl recipes | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:  # a full disk, a folder without permission
        print(f"ressl: {_who()}{printable(_of_file(error))}", file=sys.stderr)
        return 2
    finally:
        dismiss()
        recall()


def _of_file(error: OSError) -> str:
    """Which file, and why. Of a temporary one, which is gone or never was, its folder."""
    if not error.filename or not error.strerror:
        return str(error)
    folder, name = os.path.split(os.fsdecode(error.filename))
    if not is_litter(name):
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    denied = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
    cure = "; have its permissions changed, or work on a copy of it" if denied else ""
    return f"the folder {folder or '.'} cannot be written to: {error.strerror}{cure}"


def _warn(message: Warning | str, *_: object) -> None:
    """One line; where in the code it arose is nothing to who runs a command."""
    print(f"ressl: {_who()}warning: {printable(str(message))}", file=sys.stderr)


def _who() -> str:
    """Which of several processes is speaking."""
    rank = os.environ.get("RANK") or os.environ.get("SLURM_PROCID")
    several = (os.environ.get("WORLD_SIZE") or os.environ.get("SLURM_NTASKS") or "1") != "1"
    return f"rank {rank}: " if rank and several else ""


def _main(arguments: list[str]) -> int:
    asked = arguments[0] if arguments else None
    if asked is not None and not asked.startswith("-") and asked not in COMMANDS:
        raise unknown("command", asked, COMMANDS)
    parser = build_parser(asked)
    mine, inner = arguments, list[str]()
    if asked == "launch" and "--" in arguments:  # what follows is another command's, options and all
        place = arguments.index("--")
        mine, inner = arguments[:place], arguments[place + 1 :]
    if empty := [word for word in mine if word.startswith("--") and word.endswith("=--")]:
        raise ResslError(f"{empty[0].removesuffix('=--')} wants a value")  # Python 3.11 would make it an empty list
    options, rest = parser.parse_known_args(mine)
    if rest:
        raise ResslError(_unexpected(parser, options.command, rest[0]))
    if options.version:
        from ressl import __version__

        print(f"ressl {__version__}")
        return 0
    if options.command is None:
        parser.print_help()
        return 0
    for action in _subparsers(parser)[options.command]._actions:
        given = getattr(options, action.dest, None)
        if given == action.default or action.dest.startswith("change:"):  # of those, the kind of value decides
            continue
        if given == "" or (isinstance(given, list) and "" in given):  # as a path it would be the current folder
            name = action.option_strings[-1] if action.option_strings else action.dest
            raise ResslError(f"{name} is empty; give it a value, or set the variable that it is taken from")
    changes = {
        k.removeprefix("change:"): v for k, v in vars(options).items() if k.startswith("change:") and v is not None
    }
    options.inner = inner
    code: int = _module(options.command).run(options, changes)
    return code


def _module(command: str) -> Any:
    return importlib.import_module(f"ressl.commands.{command}")


def _subparsers(parser: Parser) -> dict[str, Parser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _unexpected(parser: Parser, command: str | None, word: str) -> str:
    if not word.startswith("-"):
        return f"unexpected argument '{word}'; see 'ressl {command or ''} --help'".replace("  ", " ")
    here = _subparsers(parser)[command] if command else parser
    known = [flag for action in here._actions for flag in action.option_strings]
    near = difflib.get_close_matches(word.split("=")[0], known, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'?" if near else f"see 'ressl {command or ''} --help'".replace("  ", " ")
    return f"unknown option '{word}'; {hint}"
