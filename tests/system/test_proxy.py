"""Which hosts and addresses the proxy lets through. The proxy at work is in tests/sandboxes/test_network.py."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workstead.errors import Invalid
from workstead.system.process import addresses, proxy
from workstead.system.process.proxy import Rule


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("example.org", Rule(host="example.org")),
        (" EXAMPLE.org ", Rule(host="example.org")),
        ("*.example.org", Rule(host="*.example.org")),
        ("example.org:8443", Rule(host="example.org", ports=(8443,))),
        ("192.0.2.7:80", Rule(host="192.0.2.7", ports=(80,))),
    ],
)
def test_rules_are_read(text: str, rule: Rule) -> None:
    assert proxy.parse_rule(text) == rule


@pytest.mark.parametrize(
    "text",
    ["", "*", "*.", "http://x", "a b", "a\0b", "a/b", "a@b", "-a", "a-", "a..b", "ex*mple.org", "a:0", "a:b", "a:٣",
     "[::1]", "a:99999", "1.2.3", "0x7f000001", "1.2.3.4.5", "01.2.3.4", "b\u00fccher.example", "a\n"],
)  # fmt: skip
def test_what_is_no_host_is_refused(text: str) -> None:
    if text == "a\n":
        assert proxy.parse_rule(text).host == "a"
        return
    with pytest.raises(Invalid):
        proxy.parse_rule(text)


RULES = (Rule(host="example.org"), Rule(host="*.wild.test"), Rule(host="port.test", ports=(8080,)))


@pytest.mark.parametrize(
    ("host", "port", "found"),
    [
        ("example.org", 443, True), ("example.org", 80, True), ("example.org", 22, False),
        ("www.example.org", 443, False), ("badexample.org", 443, False),
        ("example.org.evil.test", 443, False), ("a.wild.test", 443, True),
        ("a.b.wild.test", 443, True), ("wild.test", 443, False), ("evilwild.test", 443, False),
        ("port.test", 8080, True), ("port.test", 443, False),
    ],
)  # fmt: skip
def test_rules_fit_whole_names_only(host: str, port: int, found: bool) -> None:
    assert (proxy.find_rule(RULES, host, port) is not None) == found
    assert proxy.find_rule((), host, port) is None


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.215.14", True), ("2606:2800:21f:cb07:6820:80da:af6b:8b2c", True), ("127.0.0.1", False),
        ("0.0.0.0", False), ("10.1.2.3", False),
        ("172.16.0.1", False), ("192.168.1.1", False), ("169.254.169.254", False),
        ("100.64.0.1", False), ("224.0.0.1", False), ("255.255.255.255", False),
        ("240.0.0.1", False), ("192.0.2.1", False), ("::1", False),
        ("::", False), ("fe80::1", False), ("fc00::1", False), ("fd00:ec2::254", False), ("::ffff:127.0.0.1", False),
        ("::ffff:8.8.8.8", True), ("64:ff9b::7f00:1", False), ("2002:7f00:1::", False), ("ff02::1", False),
        ("2001:db8::1", False),
    ],
)  # fmt: skip
def test_only_the_open_internet_is_public(address: str, public: bool) -> None:
    assert addresses.is_public(ipaddress.ip_address(address)) == public


@given(st.text(max_size=60))
def test_a_host_name_is_never_anything_else(text: str) -> None:
    if addresses.is_host_name(text):
        assert text.isascii()
        assert text == text.lower()
        assert not set(text) & set(" \0\t\r\n/\\@:?#[]%*")
        assert not text.startswith((".", "-"))
        last = text.rsplit(".", 1)[-1]
        if last.isdigit() or last.startswith("0x"):
            assert str(ipaddress.IPv4Address(text)) == text


def test_a_denial_that_makes_no_sense_does_no_harm() -> None:
    assert proxy.parse_denial(b"{broken")["reason"]
    assert proxy.parse_denial(b'{"host": "x", "reason": 5}') == {"host": "x", "reason": "5"}
