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
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.UUID;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;

/** A distributed worker of Connect with the file connectors: lines into a topic, and out of it. */
final class ConnectChecks {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final String WORKER = "org.apache.kafka.connect.cli.ConnectDistributed";
    private static final String STRINGS = "org.apache.kafka.connect.storage.StringConverter";
    private static final String FILES = "org.apache.kafka.connect.file.FileStream";

    private final String server;
    private final String run = "connect-" + UUID.randomUUID().toString().substring(0, 8);
    private final String topic = run + "-lines";
    private final Path folder = Files.createTempDirectory("connect");
    private final Path from = folder.resolve("from.txt");
    private final Path to = folder.resolve("to.txt");
    private final File log = folder.resolve("worker.log").toFile();
    private final HttpClient http = HttpClient.newHttpClient();
    private final int port;
    private int lines;

    private ConnectChecks(String server) throws IOException {
        this.server = server;
        try (ServerSocket free = new ServerSocket(0)) {
            port = free.getLocalPort();
        }
    }

    public static void main(String[] arguments) throws Exception {
        Checks checks = new Checks(arguments[1], arguments[0]);
        ConnectChecks all = new ConnectChecks(arguments[0]);
        Child[] worker = {all.worker()};
        checks.check("worker-starts", () -> all.ready(worker[0]));
        checks.check("internal-topics-are-compacted", all::internalTopics);
        checks.check("a-file-goes-through-a-topic", () -> all.through(100, true));
        checks.check("offsets-are-told", all::offsetsTold);
        checks.check("a-restarted-worker-goes-on", () -> {
            worker[0].stop();
            all.append(50); // found by the next one
            worker[0] = all.worker();
            all.ready(worker[0]);
            all.through(50, false);
        });
        checks.check("connectors-are-deleted", () -> {
            all.ask("DELETE", "/connectors/source", "");
            all.ask("DELETE", "/connectors/sink", "");
            Checks.until("no connectors", () -> all.ask("GET", "/connectors", "").isEmpty());
        });
        worker[0].kill();
        checks.end();
    }

    private Child worker() throws Exception {
        Properties settings = Checks.settings(server,
            "group.id", run, "listeners", "http://127.0.0.1:" + port,
            "key.converter", STRINGS, "value.converter", STRINGS,
            "config.storage.topic", run + "-configs", "config.storage.replication.factor", "1",
            "offset.storage.topic", run + "-offsets", "offset.storage.replication.factor", "1",
            "offset.storage.partitions", "2", "offset.flush.interval.ms", "500",
            "status.storage.topic", run + "-status", "status.storage.replication.factor", "1",
            "status.storage.partitions", "1", "exactly.once.source.support", "enabled",
            "scheduled.rebalance.max.delay.ms", "0", "session.timeout.ms", "6000",
            "heartbeat.interval.ms", "1000", "plugin.discovery", "service_load",
            "plugin.path", folder.toString());
        Path file = folder.resolve("worker.properties");
        try (var out = Files.newOutputStream(file)) {
            settings.store(out, null);
        }
        return new Child(log, WORKER, file.toString());
    }

    private void ready(Child worker) throws Exception {
        Checks.until("the worker (" + log + ")", () -> {
            Checks.that(worker.alive(), "the worker ended: " + log);
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
    private JsonNode ask(String method, String path, String body) throws Exception {
        List<HttpResponse<String>> last = new ArrayList<>();
        Checks.until(method + " " + path, () -> {
            last.clear();
            last.add(answer(method, path, body));
            return last.get(0).statusCode() != 409;
        });
        Checks.that(last.get(0).statusCode() < 300, last.get(0).body());
        return JSON.readTree(last.get(0).body().isEmpty() ? "null" : last.get(0).body());
    }

    private void append(int count) throws IOException {
        List<String> more = IntStream.range(lines, lines + count).mapToObj(n -> "line " + n)
            .toList();
        Files.write(from, more, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        lines += count;
    }

    private void internalTopics() throws Exception {
        try (Admin admin = Admin.create(Checks.settings(server))) {
            List<String> names = List.of(run + "-configs", run + "-offsets", run + "-status");
            // The worker answers before it has made them.
            Checks.until("the internal topics",
                () -> admin.listTopics().names().get().containsAll(names));
            for (String name : names) {
                ConfigResource of = new ConfigResource(ConfigResource.Type.TOPIC, name);
                Checks.equal("compact", admin.describeConfigs(List.of(of)).all().get().get(of)
                    .get("cleanup.policy").value());
            }
        }
    }

    /** The first time the file is written and the connectors are made; then both are there. */
    private void through(int count, boolean first) throws Exception {
        if (first) {
            append(count);
            ask("PUT", "/connectors/source/config", JSON.writeValueAsString(Map.of(
                "connector.class", FILES + "SourceConnector", "tasks.max", "1", "topic", topic,
                "file", from.toString(), "exactly.once.support", "required")));
            // No topic.creation.*: the broker makes the topic, since somebody asks for it.
            ask("PUT", "/connectors/sink/config", JSON.writeValueAsString(Map.of(
                "connector.class", FILES + "SinkConnector", "tasks.max", "1", "topics", topic,
                "file", to.toString())));
        }
        List<String> expected = Files.readAllLines(from);
        Checks.equal(lines, expected.size());
        Checks.until("all lines (" + log + ")",
            () -> Files.exists(to) && Files.readAllLines(to).size() >= lines);
        Checks.equal(expected, Files.readAllLines(to));
        Checks.equal(expected, inTopic());
        Checks.equal("RUNNING", ask("GET", "/connectors/source/status", "").get("tasks").get(0)
            .get("state").asText());
    }

    private List<String> inTopic() throws Exception {
        List<String> seen = new ArrayList<>();
        TopicPartition whole = new TopicPartition(topic, 0);
        StringDeserializer text = new StringDeserializer();
        try (KafkaConsumer<String, String> reader = new KafkaConsumer<>(Checks.settings(server,
                "isolation.level", "read_committed", "enable.auto.commit", false), text, text)) {
            reader.assign(List.of(whole));
            reader.seekToBeginning(List.of(whole));
            long end = reader.endOffsets(List.of(whole)).get(whole);
            Checks.until("the end of the topic", () -> {
                reader.poll(Duration.ofMillis(100)).forEach(r -> seen.add(r.value()));
                return reader.position(whole) >= end;
            });
        }
        return seen;
    }

    private void offsetsTold() throws Exception {
        Checks.until("the source's offset", () -> {
            JsonNode told = ask("GET", "/connectors/source/offsets", "").get("offsets");
            return told.size() == 1
                && told.get(0).get("offset").get("position").asLong() == Files.size(from);
        });
        Checks.until("the sink's offset", () -> {
            JsonNode told = ask("GET", "/connectors/sink/offsets", "").get("offsets");
            return told.size() == 1
                && told.get(0).get("offset").get("kafka_offset").asLong() >= lines;
        });
    }
}
