"""Credentials are refreshed early, and kept while that fails; each cloud's chain finds them."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from feeder.errors import StoreError
from feeder.store.aws import find_aws
from feeder.store.credentials import Credentials, Found
from feeder.store.tokens import find_azure, find_google
from tests.store.conftest import Open, Retries
from tests.support.raw_client import wait_until
from tests.support.stores import FaultyStore, S3Server, refusal, status

HOUR_S = 3600.0


class Service:
    """Gives credentials for an hour, by a clock that stands, until it is down."""

    def __init__(self, life_s: float | None = HOUR_S) -> None:
        self.now_s = 1e9
        self.life_s = life_s
        self.given = 0
        self.failures = 0
        self.is_down = False
        self.credentials = Credentials(self.find, self.count_failure, lambda: self.now_s)

    def find(self) -> Found:
        if self.is_down:
            raise StoreError("unreachable", "the service is down")
        self.given += 1
        expires_s = None if self.life_s is None else self.now_s + self.life_s
        return Found({"token": str(self.given)}, expires_s)

    def count_failure(self) -> None:
        self.failures += 1

    def token(self, after_s: float = 0.0) -> object:
        """Return the token that signs a request ``after_s`` seconds later."""
        self.now_s += after_s
        self.credentials.refresh()
        return self.credentials()["token"]


def test_they_are_refreshed_before_they_expire_at_times_that_differ() -> None:
    ages = set()
    for _ in range(20):
        service = Service()
        assert service.token() == "1"
        while service.token(10.0) == "1":
            pass
        ages.add(service.now_s - 1e9)
    assert HOUR_S - 900 <= min(ages) < max(ages) <= HOUR_S - 440
    assert len(ages) > 5


def test_what_does_not_expire_is_asked_for_once() -> None:
    service = Service(life_s=None)
    assert service.token() == service.token(1e6) == "1"
    assert service.credentials()["expires_at"] is None


def test_a_refresh_that_fails_is_counted_and_keeps_the_current_ones(
    caplog: pytest.LogCaptureFixture,
) -> None:
    service = Service()
    service.token()
    service.is_down = True
    assert {service.token(60.0) for _ in range(59)} == {"1"}
    assert 7 <= service.failures <= 15  # one each minute since the refresh was due
    assert len(caplog.messages) == service.failures
    assert "used until they expire: the service is down" in caplog.text
    with pytest.raises(StoreError, match=r"have expired and cannot .*: the service is down") as one:
        service.token(61.0)
    assert one.value.kind == "expired"
    service.is_down = False
    assert service.token(6.0) == "2"
    service.is_down = True
    assert service.token(60.0) == "2"


def test_without_any_the_service_is_not_asked_by_each_request() -> None:
    service = Service()
    service.is_down = True
    for _ in range(64):
        with pytest.raises(StoreError, match=r"^the service is down"):
            service.token()
    assert service.failures == 1
    service.is_down = False
    assert service.token(6.0) == "1"


def test_one_thread_refreshes_while_others_go_on() -> None:
    service = Service()
    service.token()
    service.now_s += HOUR_S - 60
    asked, answer = threading.Event(), threading.Event()
    find = service.find

    def find_slowly() -> Found:
        asked.set()
        answer.wait(30)
        return find()

    service.credentials._find = find_slowly
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(service.token)
        assert asked.wait(30)
        assert service.token() == "1"
        answer.set()
        assert slow.result() == "2"


def test_refused_ones_are_replaced_once() -> None:
    service = Service()
    service.token()
    refused = service.credentials.found
    service.now_s += 10
    assert service.credentials.replace(refused)
    assert service.credentials.replace(refused)
    assert service.given == 2
    same = Credentials(lambda: Found({"token": "1"}), lambda: None)
    same.refresh()
    assert not same.replace(same.found)


# --- AWS ------------------------------------------------------------------------------------------

AWS_VALUES = {"access_key_id": "key", "secret_access_key": "secret", "token": None}


def write_aws(home: Path, credentials: str, config: str = "") -> None:
    (home / ".aws").mkdir(exist_ok=True)
    (home / ".aws" / "credentials").write_text(credentials)
    (home / ".aws" / "config").write_text(config)


def aws_json(expires_s: float, key: str = "key") -> str:
    return json.dumps(
        {
            "Version": 1,
            "Code": "Success",
            "AccessKeyId": key,
            "SecretAccessKey": "secret",
            "Token": "token",
            "SessionToken": "token",
            "Expiration": datetime.fromtimestamp(expires_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
    )


@pytest.fixture(autouse=True)
def needs_botocore() -> None:
    pytest.importorskip("botocore")


def test_keys_in_the_environment_and_in_profiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_aws(
        tmp_path,
        "[default]\naws_access_key_id=key\naws_secret_access_key=secret\n"
        "[other]\naws_access_key_id=k2\naws_secret_access_key=s2\naws_session_token=t2\n",
    )
    assert find_aws() == (AWS_VALUES, None)
    monkeypatch.setenv("AWS_PROFILE", "other")
    assert find_aws().values["token"] == "t2"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k3")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "t3")
    assert find_aws().values == {
        "access_key_id": "k3",
        "secret_access_key": "s3",
        "token": "t3",
    }


def test_a_profile_has_the_region_and_the_endpoint(
    tmp_path: Path, faulty: FaultyStore, open_store: Open
) -> None:
    write_aws(
        tmp_path,
        "[default]\naws_access_key_id=key\naws_secret_access_key=secret\n",
        f"[default]\nregion = eu-west-9\nendpoint_url = {faulty.endpoint}\n",
    )
    open_store("s3://bucket/prefix", {}).head("object")
    assert "Credential=key/" in faulty.requests[0][2]["authorization"]
    assert "/eu-west-9/s3/" in faulty.requests[0][2]["authorization"]


def test_a_process_of_a_profile_says_when_they_expire(tmp_path: Path) -> None:
    expires_s = time.time() + 5000
    (tmp_path / "answer.json").write_text(aws_json(expires_s))
    write_aws(tmp_path, f"[default]\ncredential_process = cat {tmp_path}/answer.json\n")
    values, found_s = find_aws()
    assert values == {"access_key_id": "key", "secret_access_key": "secret", "token": "token"}
    assert found_s == pytest.approx(expires_s, abs=3)
    write_aws(tmp_path, "[default]\ncredential_process = false\n")
    with pytest.raises(StoreError, match="AWS gives no credentials") as caught:
        find_aws()
    assert caught.value.kind == "denied"


def test_a_role_of_the_instance_or_the_container(monkeypatch: pytest.MonkeyPatch) -> None:
    expires_s = time.time() + 5000
    role = "latest/meta-data/iam/security-credentials"
    answer = aws_json(expires_s).encode()
    objects = {"latest/api/token": b"t", role: b"role", f"{role}/role": answer, "task": answer}
    with FaultyStore(objects) as service:
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "false")
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", service.endpoint)
        assert find_aws().expires_s == pytest.approx(expires_s, abs=3)
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{service.endpoint}/task")
        service.requests.clear()
        assert find_aws().expires_s == pytest.approx(expires_s, abs=3)
        assert [path for _, path, _ in service.requests] == ["/task"]


def test_a_web_identity(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("a.b.c")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", s3.endpoint)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/feeder")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    values, expires_s = find_aws()
    assert values["token"]
    assert expires_s == pytest.approx(time.time() + HOUR_S, abs=60)


def test_without_any_the_line_says_what_to_set(open_store: Open, faulty: FaultyStore) -> None:
    store = open_store("s3://bucket/prefix", {"AWS_ENDPOINT_URL": faulty.endpoint})
    with pytest.raises(StoreError, match=r"no credentials of AWS .* AWS_SKIP_SIGNATURE=true"):
        store.head("object")
    assert faulty.requests == []


def test_credentials_that_expired_are_read_again_from_their_file(
    tmp_path: Path,
    faulty: FaultyStore,
    open_store: Open,
    retries: Retries,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("feeder.store.credentials._LIFE_MIN_S", 0.0)
    write_aws(tmp_path, "[default]\naws_access_key_id=old\naws_secret_access_key=secret\n")
    store = open_store("s3://bucket/prefix", {"AWS_ENDPOINT_URL": faulty.endpoint})
    assert store.read("object").size_bytes == 1000
    write_aws(tmp_path, "[default]\naws_access_key_id=new\naws_secret_access_key=secret\n")
    faulty.fail("object", refusal(400, "ExpiredToken"))
    assert store.read("object").size_bytes == 1000
    keys = [
        about["authorization"].partition("Credential=")[2][:3] for _, _, about in faulty.requests
    ]
    assert keys == ["old", "old", "new"]
    assert retries == ["expired"]
    faulty.fail("object", refusal(400, "ExpiredToken"))
    with pytest.raises(StoreError, match="the credentials have expired"):
        store.read("object")


def test_when_they_expire_is_known(tmp_path: Path, faulty: FaultyStore, open_store: Open) -> None:
    expires_s = time.time() + 5000
    (tmp_path / "answer.json").write_text(aws_json(expires_s))
    write_aws(tmp_path, f"[default]\ncredential_process = cat {tmp_path}/answer.json\n")
    store = open_store("s3://bucket/prefix", {"AWS_ENDPOINT_URL": faulty.endpoint})
    assert store.credentials_expire_s is None
    store.head("object")
    assert store.credentials_expire_s == pytest.approx(expires_s, abs=3)


# --- Google Cloud and Azure -----------------------------------------------------------------------

GOOGLE = "computeMetadata/v1/instance/service-accounts/default/token"


def test_the_service_account_of_a_machine_at_google(
    faulty: FaultyStore, open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty.objects[GOOGLE] = b'{"access_token": "abc", "expires_in": 3599, "token_type": "Bearer"}'
    monkeypatch.setenv("GCE_METADATA_HOST", faulty.endpoint.removeprefix("http://"))
    store = open_store("gs://bucket/prefix", {"GOOGLE_BASE_URL": faulty.endpoint})
    assert store.read("object", 0, 10).size_bytes == 1000
    assert faulty.requests[0][2]["Metadata-Flavor"] == "Google"
    assert faulty.requests[-1][2]["authorization"] == "Bearer abc"
    assert store.credentials_expire_s == pytest.approx(time.time() + 3599, abs=5)
    faulty.fail("token", status(404))
    with pytest.raises(
        StoreError, match=r"/token gives no credentials \(status 404\): set GOOGLE_"
    ):
        find_google()


def test_requests_are_signed_with_what_was_refreshed(
    faulty: FaultyStore, open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feeder.store.credentials._LIFE_MIN_S", 0.0)
    faulty.objects[GOOGLE] = b'{"access_token": "first", "expires_in": 1}'
    monkeypatch.setenv("GCE_METADATA_HOST", faulty.endpoint.removeprefix("http://"))
    store = open_store("gs://bucket/prefix", {"GOOGLE_BASE_URL": faulty.endpoint})

    def signed_with(token: str) -> bool:
        store.read("object", 0, 10)
        return faulty.requests[-1][2]["authorization"] == f"Bearer {token}"

    assert signed_with("first")
    faulty.objects[GOOGLE] = b'{"access_token": "second", "expires_in": 3600}'
    wait_until(lambda: signed_with("second"), "the second token")


def test_an_emulator_of_google_needs_no_credentials(faulty: FaultyStore, open_store: Open) -> None:
    store = open_store(
        "gs://bucket/prefix", {"STORAGE_EMULATOR_HOST": faulty.endpoint.removeprefix("http://")}
    )
    assert store.head("object").size_bytes == 1000
    assert "authorization" not in faulty.requests[-1][2]


@pytest.mark.parametrize("way", ["secret", "federated", "managed"])
def test_azure_gives_tokens_to_applications_and_machines(
    faulty: FaultyStore,
    open_store: Open,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    answer = {"access_token": "abc", "expires_in": "3599"}
    if way == "managed":
        answer["expires_on"] = str(int(time.time()) + 3599)
        monkeypatch.setenv("IDENTITY_ENDPOINT", f"{faulty.endpoint}/identity")
    elif way == "secret":
        monkeypatch.setenv("AZURE_CLIENT_SECRET", "secret")
    else:
        (tmp_path / "token").write_text("a.b.c")
        monkeypatch.setenv("AZURE_FEDERATED_TOKEN_FILE", str(tmp_path / "token"))
    path = "identity" if way == "managed" else "tenant/oauth2/v2.0/token"
    faulty.objects[path] = json.dumps(answer).encode()
    monkeypatch.setenv("AZURE_AUTHORITY_HOST", faulty.endpoint)
    monkeypatch.setenv("AZURE_CLIENT_ID", "client")
    monkeypatch.setenv("AZURE_TENANT_ID", "tenant")
    account = {"AZURE_STORAGE_ACCOUNT": "acc", "AZURE_STORAGE_ENDPOINT": faulty.endpoint}
    store = open_store("az://bucket/prefix", account)
    assert store.read("object", 0, 10).size_bytes == 1000
    assert faulty.requests[-1][2]["authorization"] == "Bearer abc"
    assert store.credentials_expire_s == pytest.approx(time.time() + 3599, abs=5)
    faulty.objects[path] = b"<html>"
    with pytest.raises(StoreError, match="an answer without a token") as caught:
        find_azure()
    assert "secret" not in str(caught.value)


def test_azure_keys_by_the_names_of_its_tools(faulty: FaultyStore, open_store: Open) -> None:
    values = ("AccountName=acc", "AccountKey=a2V5", f"BlobEndpoint={faulty.endpoint}")
    for environment in (
        {"AZURE_STORAGE_CONNECTION_STRING": ";".join(values)},
        {"AZURE_STORAGE_ACCOUNT": "acc", "AZURE_STORAGE_KEY": "a2V5"},
    ):
        store = open_store("az://bucket/prefix", environment)
        store.head("object")
        assert faulty.requests[-1][2]["authorization"].startswith("SharedKey acc:")


def test_a_signature_of_azure_is_not_quoted(
    faulty: FaultyStore, open_store: Open, retries: Retries
) -> None:
    account = {"AZURE_STORAGE_ACCOUNT": "acc", "AZURE_STORAGE_ENDPOINT": faulty.endpoint}
    account["AZURE_STORAGE_SAS_TOKEN"] = "sv=2023&sig=hidden"
    store = open_store("az://bucket/prefix", account)
    expired = (
        "<Error><Code>AuthenticationFailed</Code><Message>Server failed to authenticate.\nRequestId"
        "</Message><AuthenticationErrorDetail>Signature not valid in the specified time frame: Sta"
    )
    faulty.fail("object", status(403, expired), status(403), status(302))
    for kind in ("expired", "denied", "unknown"):
        with pytest.raises(StoreError) as caught:
            store.read("object", 0, 10)
        assert caught.value.kind == kind
        assert "hidden" not in str(caught.value)
    assert "hidden" in faulty.requests[-1][1]
