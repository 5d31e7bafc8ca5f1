"""Owns where webhooks may go: decides which names and addresses are open to them, and looks each name up once."""

import asyncio
import socket
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final

from aiohttp.abc import AbstractResolver, ResolveResult

from timers import Fail

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Lookup = Callable[..., list[tuple[Any, ...]]]
Matcher = Callable[..., bool]

_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
_NAT64: Final = IPv6Network("64:ff9b::/96")
_V4_COMPATIBLE: Final = IPv6Network("::/96")
_ISATAP: Final = 0x5EFE
_NOT_PUBLIC: Final = tuple(map(ip_network, ("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32", "3fff::/20")))
"""Networks that Python 3.11 calls public, or that look public, but are not: protocol assignments, the 6to4 relay, the
address of Azure's service to its guests, and addresses for documentation (RFC 9637)."""

LOOKUPS_AT_ONCE: Final = 32
"""Threads that look names up. They are not the event loop's, so a name server that hangs holds up only webhooks."""


def matcher(entries: Iterable[str]) -> Matcher:
    """Says whether one of the entries, which are hosts, `*.suffix` and networks as in TIMERS_WEBHOOK_ALLOW, names the
    host or holds one of the addresses."""
    hosts, suffixes, networks = set[str](), list[str](), list[Network]()
    for entry in map(str.lower, entries):
        try:
            networks.append(ip_network(entry))
        except ValueError:
            suffixes.append(entry[1:]) if entry.startswith("*.") else hosts.add(entry)

    def matches(host: str, *addresses: Address) -> bool:
        named = host in hosts or host.endswith(tuple(suffixes))
        return named or any(address in network for network in networks for address in addresses)

    return matches


class GuardedResolver(AbstractResolver):
    """Looks names up for the connections of one scheme. It refuses a name unless every address behind it is open to web
    hooks. The connection uses an address that was checked, so a second answer from the name server changes nothing."""

    def __init__(self, allow: Matcher, deny: Matcher, lookup: Lookup, *, https: bool) -> None:
        self._allow, self._deny, self._https, self._lookup = allow, deny, https, lookup
        self._threads = ThreadPoolExecutor(LOOKUPS_AT_ONCE, thread_name_prefix="timers-lookup")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Raises Fail, or OSError for an unknown name."""
        found = await asyncio.get_running_loop().run_in_executor(self._threads, self._look_up, host, port, family)
        return [self._checked(host, port, number, str(place[0])) for number, _, _, _, place in found]

    def _look_up(self, host: str, port: int, family: int) -> list[tuple[Any, ...]]:
        try:
            return self._lookup(host, port, family, socket.SOCK_STREAM, 0, socket.AI_ADDRCONFIG)
        except UnicodeError as error:  # a label that cannot be sent to a name server
            raise OSError(f"{host} is not a valid name: {error}") from None

    def _checked(self, host: str, port: int, family: int, address: str) -> ResolveResult:
        self.check(host, ip_address(address))
        flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        return ResolveResult(hostname=host, host=address, port=port, family=family, proto=0, flags=flags)

    def check_literal(self, host: str) -> None:
        """Raises Fail if the host is an address that is not open. A client connects to an address without looking
        it up, and accepts forms that few other programs accept, such as 2130706433."""
        if ":" in host or host.replace(".", "").isdigit():
            try:
                address = ip_address(host)
            except ValueError:
                raise Fail(f"url: {host} is not an address in its usual form") from None
            self.check(host, address)

    def check(self, host: str, address: Address) -> None:
        """Raises Fail if the host's address is not open to webhooks."""
        host, inner = host.rstrip(".").lower(), unwrapped(address)
        if self._deny(host, address, inner):
            raise Fail(f"url: {host} is excluded by TIMERS_WEBHOOK_DENY")
        if self._allow(host, inner):
            return
        if not self._https:
            raise Fail(
                f"url: http:// is only for hosts in TIMERS_WEBHOOK_ALLOW, and {host} is not among them; use https://"
            )
        if not (is_public(address) and is_public(inner)):
            raise Fail(f"url: {host} is not a public address and is not in TIMERS_WEBHOOK_ALLOW")

    async def close(self) -> None:
        """Ends without waiting for look-ups in progress."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def unwrapped(address: Address) -> Address:
    """The IPv4 address inside an IPv6 address that is mapped, compatible, 6to4, Teredo, NAT64 or ISATAP. Any other
    address is returned unchanged."""
    if isinstance(address, IPv4Address):
        return address
    low = IPv4Address(int(address) & 0xFFFF_FFFF)
    if address in _NAT64 or (address in _V4_COMPATIBLE and int(address) > 1):
        return low
    if (int(address) >> 32) & 0xFDFF_FFFF == _ISATAP:
        return low
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else address)


def is_public(address: Address) -> bool:
    """Whether the address is on the public internet. An IPv6 address that stands for an IPv4 one (NAT64, mapped, 6to4)
    passes here, because `GuardedResolver.check` judges the IPv4 address as well."""
    if any(address in network for network in _NOT_PUBLIC):
        return False
    if isinstance(address, IPv4Address):
        return address.is_global and not address.is_multicast
    if address in _NAT64 or address.ipv4_mapped or address.sixtofour:
        return True
    return address in _GLOBAL_UNICAST and address.is_global
