"""A plain app of Flower for `bench deploy`: sites send back the content of a message as it came."""

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp


def serve(grid: Grid, context: Context) -> None:
    """Time exchanges."""
    from unskew.bench.echo import timed
    from unskew.deploy.in_flower import GridTransport

    timed(GridTransport(grid))


def answer(message: Message, context: Context) -> Message:
    """Send it back, with this site's number."""
    message.content["partition-id"] = ConfigRecord({"partition-id": context.node_config["partition-id"]})
    return Message(message.content, reply_to=message)


server_app = ServerApp()
client_app = ClientApp()
server_app.main()(serve)
client_app.query()(answer)
