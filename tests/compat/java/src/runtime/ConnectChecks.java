import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;

/** A distributed worker of Connect with the file connectors: lines into a topic, and out of it. */
final class ConnectChecks {
    private static final String FILES = "org.apache.kafka.connect.file.FileStream";

    private final String server;
    private final String run = "connect-" + UUID.randomUUID().toString().substring(0, 8);
    private final String topic = run + "-lines";
    private final Path folder = Files.createTempDirectory("connect");
    private final Path from = folder.resolve("from.txt");
    private final Path to = folder.resolve("to.txt");
    private final Worker worker;
    private int lines;

    private ConnectChecks(String server) throws Exception {
        this.server = server;
        worker = new Worker(server, run, folder,
            "exactly.once.source.support", "enabled", "plugin.discovery", "service_load");
    }

    public static void main(String[] arguments) throws Exception {
        Checks checks = new Checks(arguments[1], arguments[0]);
        ConnectChecks all = new ConnectChecks(arguments[0]);
        Worker worker = all.worker;
        checks.check("worker-starts", worker::ready);
        checks.check("internal-topics-are-compacted", all::internalTopics);
        checks.check("a-file-goes-through-a-topic", () -> all.through(100, true));
        checks.check("offsets-are-told", all::offsetsTold);
        checks.check("a-restarted-worker-goes-on", () -> {
            worker.stop();
            all.append(50); // found by the next one
            worker.start();
            worker.ready();
            all.through(50, false);
        });
        checks.check("connectors-are-deleted", () -> {
            worker.ask("DELETE", "/connectors/source", "");
            worker.ask("DELETE", "/connectors/sink", "");
            Checks.until("no connectors", () -> worker.ask("GET", "/connectors", "").isEmpty());
        });
        worker.kill();
        checks.end();
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
            worker.connector("source", Map.of(
                "connector.class", FILES + "SourceConnector", "tasks.max", "1", "topic", topic,
                "file", from.toString(), "exactly.once.support", "required"));
            // No topic.creation.*: the broker makes the topic, since somebody asks for it.
            worker.connector("sink", Map.of(
                "connector.class", FILES + "SinkConnector", "tasks.max", "1", "topics", topic,
                "file", to.toString()));
        }
        List<String> expected = Files.readAllLines(from);
        Checks.equal(lines, expected.size());
        Checks.until("all lines (" + worker.log + ")",
            () -> Files.exists(to) && Files.readAllLines(to).size() >= lines);
        Checks.equalLists(expected, Files.readAllLines(to), "the sink's file");
        Checks.equalLists(expected, inTopic(), "the topic");
        Checks.equal("RUNNING", worker.ask("GET", "/connectors/source/status", "").get("tasks").get(0)
            .get("state").asText());
    }

    /** What is committed; the sink reads what is not, and may be ahead of the source's commit. */
    private List<String> inTopic() throws Exception {
        List<String> seen = new ArrayList<>();
        TopicPartition whole = new TopicPartition(topic, 0);
        StringDeserializer text = new StringDeserializer();
        try (KafkaConsumer<String, String> reader = new KafkaConsumer<>(Checks.settings(server,
                "isolation.level", "read_committed", "enable.auto.commit", false), text, text)) {
            reader.assign(List.of(whole));
            reader.seekToBeginning(List.of(whole));
            Checks.until("all lines, committed, and the end of the topic", () -> {
                reader.poll(Duration.ofMillis(100)).forEach(r -> seen.add(r.value()));
                return seen.size() >= lines
                    && reader.position(whole) >= reader.endOffsets(List.of(whole)).get(whole);
            });
        }
        return seen;
    }

    private void offsetsTold() throws Exception {
        Checks.until("the source's offset", () -> {
            JsonNode told = worker.ask("GET", "/connectors/source/offsets", "").get("offsets");
            return told.size() == 1
                && told.get(0).get("offset").get("position").asLong() == Files.size(from);
        });
        Checks.until("the sink's offset", () -> {
            JsonNode told = worker.ask("GET", "/connectors/sink/offsets", "").get("offsets");
            return told.size() == 1
                && told.get(0).get("offset").get("kafka_offset").asLong() >= lines;
        });
    }
}
