"""The fleet key: only its holders' signatures hold, per purpose, and its file must be private."""

import base64
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connector.protocol import LegEnvelope
from connector.signing import MAX_TOKEN_CHARS, FleetKey, ForeignVersionError, InvalidTokenError

DETERMINISTIC = settings(derandomize=True, deadline=None, max_examples=200)
SECRET = bytes(range(32))
OTHER_SECRET = bytes(range(1, 33))
KEY = FleetKey({"k1": SECRET})


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    who: str
    count: int


class OtherClaim(msgspec.Struct, frozen=True, kw_only=True):
    what: bytes


CLAIM = Claim(who="p-0", count=3)
TOKEN = KEY.sign("offer", CLAIM)

# ---------------------------------------------------------------- tokens


def test_a_signed_value_is_read_back_whole() -> None:
    assert KEY.verify("offer", TOKEN, Claim) == CLAIM


def test_the_same_value_has_the_same_token_on_every_holder() -> None:
    assert FleetKey({"k1": SECRET}).sign("offer", CLAIM) == TOKEN


def test_a_token_travels_in_json_and_headers_unchanged() -> None:
    token = KEY.sign("offer", OtherClaim(what=bytes(range(256))))
    assert set(token) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=.")


@DETERMINISTIC
@given(st.integers(0, len(TOKEN) - 1), st.characters(codec="ascii"))
def test_any_changed_character_breaks_it(position: int, character: str) -> None:
    changed = TOKEN[:position] + character + TOKEN[position + 1 :]
    if changed == TOKEN:
        assert KEY.verify("offer", changed, Claim) == CLAIM
        return
    with pytest.raises(InvalidTokenError):
        KEY.verify("offer", changed, Claim)


@DETERMINISTIC
@given(
    st.one_of(
        st.text("k1.eyJ-_=é\0", max_size=60), st.binary(max_size=9), st.none(), st.integers(), st.lists(st.booleans())
    )
)
def test_nothing_made_up_holds(token: object) -> None:
    with pytest.raises(InvalidTokenError):
        KEY.verify("offer", token, Claim)


@pytest.mark.parametrize("length", range(len(TOKEN)))
def test_no_part_of_a_token_holds(length: int) -> None:
    with pytest.raises(InvalidTokenError):
        KEY.verify("offer", TOKEN[:length], Claim)


@pytest.mark.parametrize(
    ("key", "purpose"),
    [
        pytest.param(FleetKey({"k1": OTHER_SECRET}), "offer", id="another secret under the same id"),
        pytest.param(FleetKey({"k2": SECRET}), "offer", id="the same secret under another id"),
        pytest.param(KEY, "envelope", id="another purpose"),
        pytest.param(KEY, "", id="no purpose"),
    ],
)
def test_another_key_or_purpose_does_not_verify(key: FleetKey, purpose: str) -> None:
    with pytest.raises(InvalidTokenError):
        key.verify(purpose, TOKEN, Claim)


def test_a_token_beyond_the_bound_is_not_even_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object) -> str:
        raise AssertionError("hashed an oversize token")

    monkeypatch.setattr(FleetKey, "_mac", refuse)
    with pytest.raises(InvalidTokenError, match="not a token"):
        KEY.verify("offer", "k1." + "A" * MAX_TOKEN_CHARS, Claim)


def test_nothing_is_decoded_before_the_signature_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object) -> bytes:
        raise AssertionError("decoded an unsigned payload")

    monkeypatch.setattr(base64, "urlsafe_b64decode", refuse)
    with pytest.raises(InvalidTokenError, match="does not match"):
        FleetKey({"k1": OTHER_SECRET}).verify("offer", TOKEN, Claim)


def test_a_validly_signed_value_of_another_version_is_one_error() -> None:
    with pytest.raises(ForeignVersionError, match="another version"):
        KEY.verify("offer", KEY.sign("offer", OtherClaim(what=b"x")), Claim)


def test_an_error_never_repeats_the_token_or_a_secret() -> None:
    with pytest.raises(InvalidTokenError) as caught:
        FleetKey({"k1": OTHER_SECRET}).verify("offer", TOKEN, Claim)
    assert TOKEN[5:25] not in str(caught.value)
    assert SECRET.hex() not in str(caught.value)


# ---------------------------------------------------------------- rotation


def test_the_first_key_signs_and_every_key_verifies() -> None:
    rotated = FleetKey({"k2": OTHER_SECRET, "k1": SECRET})
    assert rotated.sign("offer", CLAIM).startswith("k2.")
    assert rotated.verify("offer", TOKEN, Claim) == CLAIM
    with pytest.raises(InvalidTokenError, match="unknown key"):
        KEY.verify("offer", rotated.sign("offer", CLAIM), Claim)


def test_subkeys_of_every_line_stay_at_hand() -> None:
    rotated = FleetKey({"k2": OTHER_SECRET, "k1": SECRET})
    assert rotated.key_ids == ("k2", "k1")
    assert (rotated.digest_key("k1"), rotated.session_key("k1")) == (KEY.digest_key(), KEY.session_key())
    assert rotated.digest_key("k2") == rotated.digest_key() != KEY.digest_key()
    with pytest.raises(KeyError):
        KEY.digest_key("k2")


def test_keys_are_equal_by_ids_secrets_and_order() -> None:
    assert FleetKey({"k1": SECRET}) == KEY
    assert FleetKey({"k1": OTHER_SECRET}) != KEY
    assert FleetKey({"k2": SECRET, "k1": SECRET}) != FleetKey({"k1": SECRET, "k2": SECRET})


def test_each_use_has_a_key_of_its_own() -> None:
    keys = {KEY.digest_key(), KEY.session_key(), SECRET, FleetKey({"k1": OTHER_SECRET}).digest_key()}
    assert len(keys) == 4
    assert all(len(key) == 32 for key in keys)


def test_derived_keys_are_the_same_on_every_holder() -> None:
    twin = FleetKey({"other-id": SECRET})
    assert (twin.digest_key(), twin.session_key()) == (KEY.digest_key(), KEY.session_key())


def test_secrets_may_be_longer_than_a_hash_block() -> None:
    assert FleetKey({"k1": SECRET * 10}).digest_key() != KEY.digest_key()


# ---------------------------------------------------------------- the file


def key_file(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "fleet.key"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_private_file_is_read(tmp_path: Path) -> None:
    key = FleetKey.load(key_file(tmp_path, f"\n k2 {OTHER_SECRET.hex()} \n\nk1 {SECRET.hex()}\n"))
    assert key.active_id == "k2"
    assert key.verify("offer", TOKEN, Claim) == CLAIM


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o601])
def test_a_file_that_others_may_touch_is_refused(tmp_path: Path, mode: int) -> None:
    path = key_file(tmp_path, f"k1 {SECRET.hex()}", mode)
    with pytest.raises(ValueError, match=f"is readable by others .mode {mode:03o}.; run chmod 600 on it"):
        FleetKey.load(path)


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_the_owner_alone_may_read_it(tmp_path: Path, mode: int) -> None:
    assert FleetKey.load(key_file(tmp_path, f"k1 {SECRET.hex()}", mode)).active_id == "k1"


@pytest.mark.parametrize("content", ["a1b2" * 16, "a1b2" * 16 + " k1", "k.1 " + "a1b2" * 16])
def test_a_misplaced_secret_is_never_quoted(tmp_path: Path, content: str) -> None:
    path = tmp_path / "fleet.key"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(ValueError, match="line 1 does not start with a key id") as refused:
        FleetKey.load(path)
    assert "a1b2a1b2" not in str(refused.value)


def test_a_token_that_is_not_ascii_is_invalid() -> None:
    key = FleetKey({"k1": bytes(32)})
    with pytest.raises(InvalidTokenError):
        key.verify("offer", "k1.\ud800.x", LegEnvelope)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "holds no key"),
        ("\n\n", "holds no key"),
        ("k1", "line 1: the secret is shorter than 32 bytes"),
        (f"k1 {SECRET.hex()[:-2]}", "line 1: the secret is shorter than 32 bytes"),
        ("k1 not-hex", "line 1: the secret is not hexadecimal"),
        (f"k1 {SECRET.hex()}0", "line 1: the secret is not hexadecimal"),
        (f"k1 {SECRET.hex()}\nk1 {SECRET.hex()}", "line 2: key id k1 stands there twice"),
        ("\n".join(f"k{n} {SECRET.hex()}" for n in range(17)), "holds more than 16 keys"),
        ("#" * 65_537, "is larger than 65536 bytes"),
    ],
)
def test_a_file_without_a_proper_key_is_refused_in_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        FleetKey.load(key_file(tmp_path, text))
    assert SECRET.hex()[:20] not in str(caught.value)


def test_a_file_that_is_no_text_is_refused_without_a_byte_of_it(tmp_path: Path) -> None:
    path = key_file(tmp_path, "")
    path.write_bytes(b"k1 \xff\xfe")
    with pytest.raises(ValueError, match=r"fleet\.key is not text$"):
        FleetKey.load(path)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        FleetKey.load(tmp_path / "fleet.key")
