"""Where web hooks may go: addresses in every notation, names, and what settings allow and deny."""

import socket
from ipaddress import ip_address
from typing import Any

import pytest

from timers import Fail
from timers_processors.addresses import GuardedResolver, is_public, matcher, unwrapped


def guard(allow: str = "", deny: str = "", *, https: bool = True, lookup: Any = socket.getaddrinfo) -> GuardedResolver:
    return GuardedResolver(matcher(allow.split()), matcher(deny.split()), lookup, https=https)


def refused(of: GuardedResolver, host: str, address: str) -> str:
    with pytest.raises(Fail) as caught:
        of.check(host, ip_address(address))
    return str(caught.value).removeprefix("url: ")


PRIVATE = [
    *("127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "192.0.0.192"),
    *("224.0.0.1", "239.1.2.3", "240.0.0.1", "255.255.255.255", "198.18.0.1", "203.0.113.7", "168.63.129.16"),
    *("192.88.99.1", "::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1"),
    *("2001:db8::1", "100::1", "4000::1", "3fff::1", "3fff:fff:ffff::1"),
]
DISGUISED = [
    *("::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:a9fe:a9fe", "::127.0.0.1", "::a9fe:a9fe"),
    *("2002:a9fe:a9fe::1", "2002:7f00:1::", "64:ff9b::a9fe:a9fe", "64:ff9b::7f00:1", "64:ff9b:1::a9fe:a9fe"),
    *("2001:0:4136:e378:8000:63bf:5601:5601", "2a00:1450::5efe:a9fe:a9fe", "2a00:1450::200:5efe:7f00:1"),
]
PUBLIC = [
    "3fff:1000::1",
    "1.1.1.1",
    "93.184.216.34",
    "2606:4700:4700::1111",
    "::ffff:1.1.1.1",
    "2002:101:101::1",
    "64:ff9b::101:101",
]


@pytest.mark.parametrize("address", [*PRIVATE, *DISGUISED])
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    assert refused(guard(), "some.name", address) == (
        "some.name is not a public address and is not in TIMERS_WEBHOOK_ALLOW"
    )


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_open_over_https_and_only_so(address: str) -> None:
    guard().check("some.name", ip_address(address))
    assert "use https://" in refused(guard(https=False), "some.name", address)


@pytest.mark.parametrize("address", [each for each in DISGUISED if not each.startswith("64:ff9b:1:")])
def test_allow_and_deny_apply_to_the_address_inside_another(address: str) -> None:
    inner = unwrapped(ip_address(address))
    guard(allow=f"{inner}/32").check("some.name", ip_address(address))
    assert "TIMERS_WEBHOOK_DENY" in refused(guard(allow="0.0.0.0/0 ::/0", deny=f"{inner}/32"), "some.name", address)


def test_the_client_inside_a_teredo_address_is_checked() -> None:
    assert str(unwrapped(ip_address("2001:0:4136:e378:8000:63bf:3fff:fdd2"))) == "192.0.2.45"
    assert not is_public(ip_address("2001:0:4136:e378:8000:63bf:5601:5601"))


@pytest.mark.parametrize(
    ("allow", "host", "address"),
    [
        ("10.0.0.0/8", "some.name", "10.1.2.3"),
        ("10.0.0.7", "10.0.0.7", "10.0.0.7"),
        ("fd00::/8", "some.name", "fd00::1"),
        ("api.internal", "api.internal", "10.1.2.3"),
        ("API.internal", "api.INTERNAL.", "10.1.2.3"),
        ("*.internal", "api.eu.internal", "10.1.2.3"),
    ],
)
@pytest.mark.parametrize("https", [True, False])
def test_allow_opens_networks_hosts_and_suffixes_also_over_http(
    allow: str, host: str, address: str, https: bool
) -> None:
    guard(allow, https=https).check(host, ip_address(address))


@pytest.mark.parametrize(
    ("allow", "host", "address"),
    [
        ("10.0.0.0/8", "some.name", "11.0.0.1"),
        ("api.internal", "api.internal.example.org", "10.1.2.3"),
        ("*.internal", "internal", "10.1.2.3"),
        ("*.internal", "evilinternal", "10.1.2.3"),
    ],
)
def test_allow_opens_nothing_else(allow: str, host: str, address: str) -> None:
    assert "only for hosts in TIMERS_WEBHOOK_ALLOW" in refused(guard(allow, https=False), host, address)


@pytest.mark.parametrize("deny", ["93.184.216.0/24", "bad.example.org", "*.example.org"])
def test_deny_goes_before_allow(deny: str) -> None:
    both = guard(allow="93.184.216.34 bad.example.org *.example.org", deny=deny)
    assert refused(both, "bad.example.org", "93.184.216.34") == "bad.example.org is excluded by TIMERS_WEBHOOK_DENY"


@pytest.mark.parametrize("host", ["2130706433", "127.1", "0177.0.0.1", "017700000001", "1.2.3", "256.1.1.1", "1:2"])
def test_an_address_in_an_unusual_form_is_refused_before_anybody_reads_it(host: str) -> None:
    with pytest.raises(Fail, match="not an address in its usual form"):
        guard(allow="0.0.0.0/0").check_literal(host)


@pytest.mark.parametrize("host", ["example.org", "0x7f.1", "a1", "xn--bcher-kva.example"])
def test_a_host_name_passes_the_check_of_literal_addresses(host: str) -> None:
    guard().check_literal(host)


def answering(*addresses: str) -> Any:
    """A name lookup that knows one name."""

    def lookup(host: str, port: int, *_: Any) -> list[tuple[Any, ...]]:
        family = {True: socket.AF_INET6, False: socket.AF_INET}
        return [(family[":" in a], socket.SOCK_STREAM, 6, "", (a, port)) for a in addresses]

    return lookup


async def test_a_name_is_answered_with_the_addresses_that_were_checked() -> None:
    looking = guard(lookup=answering("1.1.1.1", "2606:4700:4700::1111"))
    found = await looking.resolve("one.example", 443)
    assert [(each["hostname"], each["host"], each["port"]) for each in found] == [
        ("one.example", "1.1.1.1", 443),
        ("one.example", "2606:4700:4700::1111", 443),
    ]
    await looking.close()


async def test_one_address_of_a_name_that_is_not_open_closes_the_name() -> None:
    looking = guard(lookup=answering("1.1.1.1", "127.0.0.1"))
    with pytest.raises(Fail, match=r"^url: one\.example is not a public address"):
        await looking.resolve("one.example", 443)
    await looking.close()


@pytest.mark.parametrize("host", ["0x7f.1", "localhost", "0x7f000001"])
async def test_what_the_system_reads_as_loopback_is_refused(host: str) -> None:
    looking = guard()
    with pytest.raises(Fail, match="is not a public address"):
        await looking.resolve(host, 443)
    await looking.close()


async def test_a_name_that_cannot_be_asked_for_is_not_known() -> None:
    looking = guard()
    with pytest.raises(OSError, match="is not a valid name"):
        await looking.resolve("a" * 64 + ".example", 443)
    await looking.close()
