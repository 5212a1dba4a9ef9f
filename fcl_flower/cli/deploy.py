"""The commands of a real federation: ``fcl certs``, ``server``, ``client``, ``run``."""

import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from fcl_flower.cli.options import configured, resume_option, resumed, run_options
from fcl_flower.core.errors import ConfigError
from fcl_flower.results.run_folder import free_folder

if TYPE_CHECKING:
    from fcl_flower.runtime.certificates import Certificates

PORT = 9092
CONTROL_PORT = 9093

_ADDRESS = re.compile(r"([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})")

certs_option = click.option(
    "--certs",
    type=click.Path(path_type=Path),
    help="Folder made by fcl certs, or the part of it that was copied here.",
)
insecure_option = click.option(
    "--insecure",
    is_flag=True,
    help="No TLS, and anybody is believed to be a client: to try things out.",
)
more_arguments = click.argument("more", nargs=-1, type=click.UNPROCESSED)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--host",
    "hosts",
    multiple=True,
    help="Name or IP address by which clients reach the server; repeatable.",
)
@click.option(
    "--clients",
    type=click.IntRange(min=0),
    default=0,
    help="Make the keys of clients 0 to this number less one, where missing.",
)
@click.option(
    "--days",
    type=click.IntRange(min=1),
    default=825,
    show_default=True,
    help="Until the server's certificate expires.",
)
@click.option("--overwrite", is_flag=True, help="Make anew what is there.")
def certs(
    folder: Path, hosts: tuple[str, ...], clients: int, days: int, overwrite: bool
) -> None:
    """Make certificates and keys for a federation in FOLDER, where missing."""
    from fcl_flower.runtime.certificates import make_certificates

    made = make_certificates(folder, hosts, clients, days, overwrite=overwrite)
    for path in made:
        click.echo(path)
    click.echo(
        f"to the server: all of {folder} but ca.key and clients/*.key; "
        f"of a new client its .pub\n"
        f"to client N:   ca.crt and clients/client-N.key, in folders of these names\n"
        f"to nobody:     ca.key, which only certifies other servers"
    )


@click.command()
@certs_option
@click.option(
    "--host", default="0.0.0.0", show_default=True, help="Where clients come in."
)
@click.option("--port", type=click.IntRange(1, 65535), default=PORT, show_default=True)
@click.option(
    "--control-port",
    type=click.IntRange(1, 65535),
    default=CONTROL_PORT,
    show_default=True,
    help="Where fcl run comes in, from this machine only.",
)
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    default=Path("federation/server"),
    show_default=True,
    help="Folder for what a restart must know.",
)
@insecure_option
@more_arguments
def server(
    certs: Path | None,
    host: str,
    port: int,
    control_port: int,
    state: Path,
    insecure: bool,
    more: tuple[str, ...],
) -> None:
    """Run the server of a federation until it is told to end.

    What follows -- goes to flower-superlink.
    """
    from fcl_flower.runtime.superlink import Addresses, run_superlink

    addresses = Addresses(host, port, control_port)
    run_superlink(_certificates(certs, insecure), state, addresses, more, _say)


@click.command()
@click.option("--server", required=True, metavar="HOST:PORT", help="Of fcl server.")
@certs_option
@click.option(
    "--number",
    required=True,
    type=click.IntRange(min=0),
    help="The client's, from 0 on: its key's, and its place in a run.",
)
@click.option("--data", type=click.Path(path_type=Path), help="Folder of its own data.")
@click.option(
    "--word-vectors", type=click.Path(path_type=Path), help="Its own file of them."
)
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    help="Folder for what a restart must know.  [default: federation/client-NUMBER]",
)
@click.option(
    "--device",
    type=click.Choice(("auto", "cpu", "cuda")),
    help="Where it trains; by default, what the run says.",
)
@insecure_option
@more_arguments
def client(
    server: str,
    certs: Path | None,
    number: int,
    data: Path | None,
    word_vectors: Path | None,
    state: Path | None,
    device: str | None,
    insecure: bool,
    more: tuple[str, ...],
) -> None:
    """Run one client of a federation until it is told to end.

    What follows -- goes to flower-supernode.
    """
    from fcl_flower.runtime.supernode import run_supernode

    node: dict[str, int | str] = {"partition-id": number}
    for key, path in (("data-path", data), ("word-vectors", word_vectors)):
        if path is not None:
            node[key] = str(_present(path, key))
    if device is not None:
        node["device"] = _device(device)
    certificates = _certificates(certs, insecure)
    place = state or Path(f"federation/client-{number}")
    run_supernode(_address(server), certificates, node, place, more, _say)


@click.command()
@run_options()
@click.option(
    "--server",
    default=f"127.0.0.1:{CONTROL_PORT}",
    show_default=True,
    metavar="HOST:PORT",
    help="The --control-port of fcl server, or the end of a tunnel to it.",
)
@certs_option
@insecure_option
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Folder for the results, on the server's machine.  [default: runs/NAME]",
)
@resume_option
def run(
    server: str,
    certs: Path | None,
    insecure: bool,
    output: Path | None,
    resume: Path | None,
    **given: Any,  # noqa: ANN401
) -> None:
    """Run one method in a federation whose server and clients are up.

    Without --clients, all that are connected take part. The server writes the results,
    so that --output names a folder of its machine, even where this is typed on another.
    """
    from fcl_flower.cli.progress import Display
    from fcl_flower.runtime.submission import SuperLink
    from fcl_flower.setup.factory import validate
    from fcl_flower.setup.resolve import resolve

    config = resumed(resume, given) if resume else configured(given)
    certificates = _certificates(certs, insecure)
    authority = certificates and _present(certificates.authority, "certs")
    console = Console(soft_wrap=True, highlight=False)

    def say(line: str) -> None:
        console.print(line, markup=False)

    with SuperLink(_address(server), authority) as superlink:
        if not config.scenario.clients:
            connected = superlink.connected()
            if not connected:
                raise ConfigError(
                    f"clients: none is connected to the server at {server}: expected "
                    f"some, or --clients with the number to wait for"
                )
            config = config.replace(clients=connected)
        resolved = resolve(config)
        validate(resolved)
        config = resolved.config
        folder = (resume or output or free_folder(config)).absolute()
        if (folder / "summary.json").exists():
            raise ConfigError(
                f"output: {str(folder)!r} holds a finished run; expected another folder"
            )
        (folder / "progress.json").unlink(missing_ok=True)
        # The folder's name is for people; another run may have had it before.
        name = config.run.id or f"{folder.name}-{secrets.token_hex(4)}"
        config = config.replace(output=str(folder), id=name)
        with Display(console, f"{config.title} seed {config.run.seed}") as display:
            superlink.run(config, say=say, watch=display.show)
    say(f"results and report.html on the server: {folder}")


def _say(line: str) -> None:
    click.echo(f"fcl: {line}")


def _certificates(folder: Path | None, insecure: bool) -> "Certificates | None":
    from fcl_flower.runtime.certificates import Certificates

    if folder is None and not insecure:
        raise ConfigError(
            "certs: none are given: expected --certs with a folder made by fcl certs, "
            "or --insecure to do without"
        )
    if folder is not None and insecure:
        raise ConfigError(
            f"certs: {str(folder)!r} is refused: expected none with --insecure"
        )
    return None if folder is None else Certificates(folder.absolute())


def _address(text: str) -> str:
    found = _ADDRESS.fullmatch(text)
    if found is None or not 0 < int(found[2]) < 65536:
        raise ConfigError(f"server: {text!r} is refused: expected HOST:PORT")
    return text


def _present(path: Path, key: str) -> Path:
    if not path.exists():
        raise ConfigError(f"{key}: {str(path)!r} is refused: expected what is there")
    return path.absolute()


def _device(wanted: str) -> str:
    """Return the device of a client; the CPU, and a word, where there is no other."""
    if wanted == "cuda":
        import torch

        if not torch.cuda.is_available():
            _say("device: 'cuda' is not there for torch; the CPU is used instead")
            return "cpu"
    return wanted
