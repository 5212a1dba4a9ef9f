"""What the files of docker/ name is there, and nothing secret gets into an image."""

import re
import shlex
from pathlib import Path

import click
import pytest
import yaml

from fcl_flower.cli.main import cli

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
COMPOSE = sorted(DOCKER.glob("*compose.yaml"))
DOCKERFILE = (DOCKER / "Dockerfile").read_text().replace("\\\n", " ")


def name(path):
    return path.name


def services(path):
    return yaml.safe_load(path.read_text())["services"]


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

    assert published == {"server": ["${PORT:-9092}:9092"]}
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


def test_a_container_does_not_run_as_root():
    users = re.findall(r"^USER (.*)$", DOCKERFILE, re.MULTILINE)

    assert users == ["fcl"]
    assert DOCKERFILE.index("USER fcl") < DOCKERFILE.index("ENTRYPOINT")


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
    installs = re.findall(r"pip install .*", DOCKERFILE)

    assert len(installs) == 2
    assert all("-c constraints.txt" in line for line in installs)
