"""What the files of docker/ name is there, and nothing secret gets into an image."""

import re
import shlex
import tomllib
from pathlib import Path

import click
import kubernetes_validate
import pytest
import yaml

from fcl_flower.cli.main import cli

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
COMPOSE = sorted(DOCKER.glob("*compose.yaml"))
DOCKERFILE = (DOCKER / "Dockerfile").read_text().replace("\\\n", " ")


def name(path):
    return path.name


def every_service(path):
    return yaml.safe_load(path.read_text())["services"]


def services(path):
    """Ours: what they run is made here."""
    return {k: s for k, s in every_service(path).items() if k != "prometheus"}


def built(path):
    return {key: s for key, s in services(path).items() if "build" in s}


def test_there_is_a_file_for_one_machine_and_two_for_several():
    assert list(map(name, COMPOSE)) == [
        *("client.compose.yaml", "compose.yaml", "server.compose.yaml"),
    ]


@pytest.mark.parametrize("path", COMPOSE, ids=name)
def test_what_is_built_is_there(path):
    targets = set(re.findall(r"^FROM \S+ AS (\w+)$", DOCKERFILE, re.MULTILINE))
    arguments = set(re.findall(r"^ARG (\w+)", DOCKERFILE, re.MULTILINE))

    for service in built(path).values():
        build = service["build"]
        context = (DOCKER / build["context"]).resolve()
        assert context == ROOT
        assert (context / build["dockerfile"]).is_file()
        assert build["target"] in targets
        assert service["image"] == f"fcl-{build['target']}"
        assert set(build["args"]) <= arguments


@pytest.mark.parametrize("path", COMPOSE, ids=name)
def test_what_is_run_from_an_image_has_one(path):
    images = {s["image"] for file in COMPOSE for s in built(file).values()}

    assert {service["image"] for service in services(path).values()} <= images


@pytest.mark.parametrize("path", COMPOSE, ids=name)
def test_keys_and_data_are_read_only_and_state_is_a_volume(path):
    volumes = yaml.safe_load(path.read_text())["volumes"]
    for key, service in services(path).items():
        if key == "certs":  # makes them
            continue
        for mount in service["volumes"]:
            source, target = re.fullmatch(r"(\$\{.*?\}|[^:]+):(.+)", mount).groups()
            if target == "/state":
                assert source in volumes
            else:
                assert re.fullmatch(r"/(certs|data)(/.*)?:ro", target)
        assert "no-new-privileges:true" in service["security_opt"]


@pytest.mark.parametrize("path", COMPOSE, ids=name)
def test_every_command_is_one_that_fcl_understands(path):
    for service in services(path).values():
        arguments = shlex.split(
            re.sub(r"\$\{.*?\}", "7", service.get("command", ""))
        ) or ["server"]
        command = cli.get_command(None, arguments[0])
        with click.Context(command) as context:
            command.parse_args(context, arguments[1:])


def test_only_the_gate_is_published():
    published = {
        key: service["ports"]
        for path in COMPOSE
        for key, service in services(path).items()
        if "ports" in service
    }

    assert published == {
        "server": ["${PORT:-9092}:9092", "127.0.0.1:${PROMETHEUS_PORT:-9090}:9090"]
    }
    assert re.findall(r"^EXPOSE (.*)$", DOCKERFILE, re.MULTILINE) == ["9092"]


def test_what_is_copied_into_the_image_is_there_and_is_let_through():
    copied = [
        source
        for line in re.findall(r"^COPY (.*)$", DOCKERFILE, re.MULTILINE)
        for source in line.split()[:-1]
    ]
    lines = (ROOT / ".dockerignore").read_text().splitlines()

    assert copied
    for source in copied:
        assert (ROOT / source).exists()
    # All is left out but what is named, so that no key can get in.
    assert "*" in lines
    assert {line[1:] for line in lines if line.startswith("!")} == set(copied)


def test_the_health_checks_ask_where_the_programs_listen():
    checks = re.findall(r"http\S+?localhost:(\d+)/health", DOCKERFILE)
    server = next(p for p in cli.commands["server"].params if p.name == "port")
    ports = {
        match
        for path in COMPOSE
        for match in re.findall(r"-- --port (\d+)", path.read_text())
    }

    assert checks == [str(server.default), "9094"]
    assert ports == {"9094"}


def test_the_image_holds_versions_that_were_tested():
    torch, others, ours = re.findall(r"pip install .*", DOCKERFILE)

    assert "-c constraints.txt" in torch
    assert "--require-hashes" in others
    assert "--no-deps ." in ours
    assert "pip check" in ours


def test_what_is_installed_beside_torch_has_a_hash_and_the_tested_version():
    text = (DOCKER / "requirements.txt").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and line[0] != "#"]
    pinned = {line.split("==")[0]: line.split()[0] for line in lines}
    tested = dict(
        line.partition("==")[::2]
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = {
        re.match(r"[a-z0-9-]+", requirement)[0]
        for requirement in (
            *project["dependencies"],
            *(*extras["deploy"], *extras["text"]),
        )
    }

    assert needed - {"torch"} <= set(pinned)
    for line in lines:
        name, _, version = line.split()[0].partition("==")
        assert "--hash=sha256:" in line
        assert tested.get(name, version) == version
    assert "://" not in text


@pytest.mark.parametrize("path", COMPOSE, ids=name)
def test_a_container_is_bounded_and_writes_to_its_state_alone(path):
    for service in services(path).values():
        assert service["read_only"] is True
        assert service["tmpfs"] == ["/tmp"]
        assert service["mem_limit"] == "${MEMORY:-8g}"
        assert service["pids_limit"] > 0
        assert service["ulimits"] == {"nofile": 65536}


@pytest.mark.parametrize("path", COMPOSE, ids=name)
def test_a_service_comes_back_by_itself_and_its_log_is_bounded(path):
    for key, service in every_service(path).items():
        wanted = "no" if key == "certs" else "unless-stopped"
        assert service["restart"] == wanted
        assert service["logging"]["driver"] == "json-file"
        options = service["logging"]["options"]
        assert options == {"max-size": "10m", "max-file": "5"}


def test_what_is_built_has_a_health_check_and_so_has_prometheus():
    stages = re.split(r"^FROM \S+ AS ", DOCKERFILE, flags=re.MULTILINE)
    checked = {s.split()[0] for s in stages if "\nHEALTHCHECK " in s}
    for path in COMPOSE:
        for service in every_service(path).values():
            if service["image"].removeprefix("fcl-") not in checked:
                assert service["healthcheck"]["test"][0] == "CMD"


def test_prometheus_is_asked_for_and_finds_its_rules_and_the_servers_metrics():
    found = every_service(DOCKER / "server.compose.yaml")
    prometheus, server = found["prometheus"], found["server"]
    mounted = dict(v.split(":", 1) for v in prometheus["volumes"])
    scraped = yaml.safe_load((DOCKER / "monitoring" / "prometheus.yml").read_text())

    assert prometheus["profiles"] == ["monitoring"]
    assert prometheus["network_mode"] == "service:server"
    assert prometheus["read_only"] is True
    assert prometheus["mem_limit"] == "1g"
    assert mounted["./monitoring"] == "/etc/prometheus:ro"
    ((target,),) = [
        s["targets"] for s in scraped["scrape_configs"][0]["static_configs"]
    ]
    port = re.search(r"--metrics-port (\d+)", server["command"])[1]
    assert target == f"127.0.0.1:{port}"


# ---- Kubernetes

PODS = [
    one["spec"]["template"]["spec"]
    for one in yaml.safe_load_all((DOCKER / "kubernetes.yaml").read_text())
    if one["kind"] == "StatefulSet"
]


def test_the_manifest_is_one_that_kubernetes_takes():
    found = list(yaml.safe_load_all((DOCKER / "kubernetes.yaml").read_text()))

    assert [one["kind"] for one in found] == ["Service", *["StatefulSet"] * 3]
    for one in found:
        kubernetes_validate.validate(one, "1.29", strict=True)


def test_a_pod_is_bounded_and_writes_to_its_state_alone():
    for pod in PODS:
        (container,) = pod["containers"]
        security = container["securityContext"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["automountServiceAccountToken"] is False
        assert security["readOnlyRootFilesystem"] is True
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert "memory" in container["resources"]["limits"]
        written = {
            m["name"] for m in container["volumeMounts"] if not m.get("readOnly")
        }
        assert written == {"state", "tmp"}


def test_every_pod_is_started_as_fcl_understands():
    for pod in PODS:
        (container,) = pod["containers"]
        arguments = container.get("args", ["server", "--certs", "/certs"])
        command = cli.get_command(None, arguments[0])
        with click.Context(command) as context:
            command.parse_args(context, arguments[1:])


def test_the_server_of_the_manifest_holds_no_private_key_of_a_client():
    items = {
        (source["secret"]["name"], item["path"])
        for pod in PODS
        for volume in pod["volumes"]
        for source in volume.get("projected", {}).get("sources", [])
        for item in source["secret"]["items"]
    }

    assert {path for name, path in items if name == "fcl-server"} == {
        *("ca.crt", "server.crt", "server.key"),
        *("clients/client-0.pub", "clients/client-1.pub"),
    }
    for n in (0, 1):
        assert {path for name, path in items if name == f"fcl-client-{n}"} == {
            *("ca.crt", f"clients/client-{n}.key"),
        }
