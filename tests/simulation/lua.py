"""Owns running the service's scripts: each is compiled once a process, and calls the commands of `data.Keys`."""

import hashlib
import importlib
import struct
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any, Final

import lupa

from tests.simulation.data import Keys, Refused, Reply

_SET_UP: Final = """
function(command, sha1hex, pack, unpack_, list)
  local type, unpack, error, pcall = type, unpack, error, pcall
  redis = {pcall = command, sha1hex = sha1hex, acl_check_cmd = function() return true end,
           error_reply = function(said) return {err = said} end, status_reply = function(said) return {ok = said} end}
  redis.call = function(...)
    local answer = command(...)
    if type(answer) == 'table' and answer.err then error(answer) end
    return answer
  end
  struct = {pack = pack, unpack = unpack_}
  return function(script, keys, argv)
    KEYS, ARGV = keys, argv
    local is_fine, answer = pcall(script)
    if not is_fine then
      if type(answer) ~= 'table' then return {err = 'ERR ' .. tostring(answer)} end
      return {err = answer.err}
    end
    if type(answer) ~= 'table' or answer.err then return answer end
    return list, unpack(answer)
  end
end
"""

_LIST: Final = b"list"
"""Comes first where a script returns a list: its parts come one by one, which takes less than to ask for them."""

with lupa.allow_lua_module_loading():
    _LUA: Final[Any] = importlib.import_module("lupa.lua51")


class Lua:
    """Redis's Lua, for one db at a time."""

    def __init__(self) -> None:
        self._lua: Any = _LUA.LuaRuntime(encoding=None, unpack_returned_tuples=True)
        self._keys: Keys | None = None
        self._compiled: dict[bytes, Any] = {}
        self._table: Callable[..., Any] = self._lua.table_from
        self._call: Callable[..., Any] = self._lua.eval(_SET_UP)(self._command, _sha1hex, _pack, _unpack, _LIST)
        self._lua.execute(b"collectgarbage('setpause', 1000)")  # its garbage is small, and looking for it is not

    def run(self, keys: Keys, script: bytes, roots: list[bytes], arguments: list[bytes]) -> Reply:
        """Run a script, given as its text."""
        compiled = self._compiled.get(script)
        if compiled is None:
            # Its first line tells a server the script's flags.
            compiled = self._compiled[script] = self._lua.eval(b"function() " + script.partition(b"\n")[2] + b"\nend")
        self._keys = keys
        answer = self._call(compiled, self._table(roots), self._table(arguments))
        if type(answer) is tuple:
            return _parts(answer[1:])
        return [] if answer == _LIST else _answer(answer)

    def _command(self, *given: Any) -> Any:
        keys = self._keys
        assert keys is not None
        return self._value(keys.run(*[part if type(part) is bytes else _text(part) for part in given]))

    def _value(self, reply: Reply) -> Any:
        if reply is None:
            return False
        if type(reply) is list:
            return self._table([self._value(each) if type(each) is not bytes else each for each in reply])
        if type(reply) is Refused:
            return self._table({b"err": str(reply).encode()})
        return reply


def _text(value: float) -> bytes:
    """A Lua number as Redis turns it into an argument."""
    return b"%d" % value if value == int(value) else b"%.17g" % value


def _parts(values: Iterable[Any]) -> list[Reply]:
    """The parts of a list, up to the first nil."""
    return [_answer(part) for part in iter(iter(values).__next__, None)]


def _answer(value: Any) -> Reply:
    """What Lua returned, as a client gets it."""
    kind = type(value)
    if kind is bytes or kind is int:
        return value
    if kind is float:
        return int(value)
    if kind is bool or value is None:
        return 1 if value else None
    if (said := value[b"err"]) is not None:
        return Refused(said.decode(errors="replace"))
    return _parts(map(value.__getitem__, count(1)))


def _sha1hex(value: bytes) -> bytes:
    return hashlib.sha1(value, usedforsecurity=False).hexdigest().encode()


def _pack(form: bytes, *numbers: float) -> bytes:
    return struct.pack(_python(form), *map(int, numbers))


def _unpack(form: bytes, data: bytes, start: int = 1) -> tuple[float, ...]:
    """The numbers, and where to go on."""
    numbers = struct.unpack_from(_python(form), data, int(start) - 1)
    return tuple(map(float, (*numbers, start + struct.calcsize(_python(form)))))


def _python(form: bytes) -> str:
    """The form of a struct as Python writes it."""
    return form.decode().replace("I4", "I").replace("I8", "Q")
