import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.io.IOException;
import java.net.ServerSocket;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;

/** A distributed worker of Connect, alone in its group; it may be started again. */
final class Worker {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final String MAIN = "org.apache.kafka.connect.cli.ConnectDistributed";
    private static final String STRINGS = "org.apache.kafka.connect.storage.StringConverter";

    final File log;
    private final Path file;
    private final HttpClient http = HttpClient.newHttpClient();
    private final int port;
    private Child child;

    /** Starts it; its internal topics and files begin with `run`. */
    Worker(String server, String run, Path folder, Object... settings) throws Exception {
        log = folder.resolve("worker.log").toFile();
        file = folder.resolve("worker.properties");
        try (ServerSocket free = new ServerSocket(0)) {
            port = free.getLocalPort();
        }
        Properties all = Checks.settings(server,
            "group.id", run, "listeners", "http://127.0.0.1:" + port,
            "key.converter", STRINGS, "value.converter", STRINGS,
            "config.storage.topic", run + "-configs", "config.storage.replication.factor", "1",
            "offset.storage.topic", run + "-offsets", "offset.storage.replication.factor", "1",
            "offset.storage.partitions", "2", "offset.flush.interval.ms", "500",
            "status.storage.topic", run + "-status", "status.storage.replication.factor", "1",
            "status.storage.partitions", "1",
            "scheduled.rebalance.max.delay.ms", "0", "session.timeout.ms", "6000",
            "heartbeat.interval.ms", "1000", "plugin.path", folder.toString());
        all.putAll(Checks.settings(server, settings));
        try (var out = Files.newOutputStream(file)) {
            all.store(out, null);
        }
        start();
    }

    void start() throws Exception {
        child = new Child(log, MAIN, file.toString());
    }

    void stop() throws Exception {
        child.stop();
    }

    void kill() throws Exception {
        child.kill();
    }

    void ready() throws Exception {
        Checks.until("the worker (" + log + ")", () -> {
            Checks.that(child.alive(), "the worker ended: " + log);
            try {
                return answer("GET", "/connectors", "").statusCode() == 200;
            } catch (IOException e) {
                return false;
            }
        });
    }

    private HttpResponse<String> answer(String method, String path, String body) throws Exception {
        return http.send(HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + port + path))
            .method(method, HttpRequest.BodyPublishers.ofString(body))
            .header("Content-Type", "application/json").timeout(Duration.ofSeconds(60)).build(),
            HttpResponse.BodyHandlers.ofString());
    }

    /** Asks again while the worker rebalances (409). */
    JsonNode ask(String method, String path, String body) throws Exception {
        List<HttpResponse<String>> last = new ArrayList<>();
        Checks.until(method + " " + path, () -> {
            last.clear();
            last.add(answer(method, path, body));
            return last.get(0).statusCode() != 409;
        });
        Checks.that(last.get(0).statusCode() < 300, last.get(0).body());
        return JSON.readTree(last.get(0).body().isEmpty() ? "null" : last.get(0).body());
    }

    void connector(String name, Map<String, String> config) throws Exception {
        ask("PUT", "/connectors/" + name + "/config", JSON.writeValueAsString(config));
    }
}
