import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.UUID;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.ReadOnlyKeyValueStore;

/**
 * What stock programs make of tombstones that carry a value (KIP-87).
 *
 * The topics are written beforehand, by who knows the flag (tests/compat/test_tombstone_programs.py):
 * `erased-rows` with create times, `erased-stamped` with append times; user-1 to user-3 live, then
 * user-1 erased with a value that is a row by itself, user-2 erased without, user-4 live. MirrorMaker
 * copies them to MIRROR_TARGET.
 */
final class TombstoneChecks {
    private static final String ROWS = "erased-rows";
    private static final String STAMPED = "erased-stamped";
    private static final String JSON_CONVERTER = "org.apache.kafka.connect.json.JsonConverter";
    private static final String BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter";
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final List<String> HISTORY = List.of("user-1 = Ann", "user-2 = Bob",
        "user-3 = Cid", "user-1 = null", "user-2 = null", "user-4 = Dee");
    private static final Map<String, String> LIVING = Map.of("user-3", "Cid", "user-4", "Dee");

    private final String server;
    private final String target = System.getenv().getOrDefault("MIRROR_TARGET", "");
    private final String run = "erased-" + UUID.randomUUID().toString().substring(0, 8);
    private final Path folder = Files.createTempDirectory("tombstones");

    private TombstoneChecks(String server) throws Exception {
        this.server = server;
    }

    public static void main(String[] arguments) throws Exception {
        Checks checks = new Checks(arguments[1], arguments[0]);
        TombstoneChecks all = new TombstoneChecks(arguments[0]);
        Worker worker = new Worker(all.server, all.run, all.folder, "plugin.discovery", "service_load");
        checks.check("ktable-forgets", () -> all.table(true));
        checks.check("ktable-forgets-when-restored", () -> all.table(false));
        checks.check("worker-starts", worker::ready);
        checks.check("jdbc-sink-deletes", () -> all.sink(worker));
        checks.check("mirror-copies-null-and-create-times", () -> all.mirror(worker));
        checks.check("mirror-gets-append-times-of-its-own", all::mirroredStamps);
        worker.kill();
        checks.end();
    }

    // --- Streams ---------------------------------------------------------------------------------

    /** The first time from the topic; then, its directory gone, the store is made from the topic. */
    private void table(boolean first) throws Exception {
        List<String> seen = Collections.synchronizedList(new ArrayList<>());
        StreamsBuilder builder = new StreamsBuilder();
        builder.table(ROWS, Consumed.with(Serdes.String(), Serdes.String()),
                Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as("rows")
                    .withCachingDisabled())
            .toStream().foreach((key, value) -> seen.add(line(key, value)));
        Properties settings = Checks.settings(server,
            StreamsConfig.APPLICATION_ID_CONFIG, run + "-table",
            StreamsConfig.STATE_DIR_CONFIG, folder.resolve("state-" + first).toString(),
            StreamsConfig.TOPOLOGY_OPTIMIZATION_CONFIG, StreamsConfig.OPTIMIZE,
            StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100,
            StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest",
            StreamsConfig.consumerPrefix("session.timeout.ms"), 6000);
        try (KafkaStreams streams = new KafkaStreams(builder.build(settings), settings)) {
            streams.start();
            if (first) {
                Checks.until("all changes", () -> seen.size() >= HISTORY.size());
            }
            Checks.until("a running table", () -> streams.state() == KafkaStreams.State.RUNNING);
            Map<String, String> stored = new TreeMap<>();
            try (KeyValueIterator<String, String> all = streams.store(StoreQueryParameters
                    .<ReadOnlyKeyValueStore<String, String>>
                    fromNameAndType("rows", QueryableStoreTypes.keyValueStore())).all()) {
                all.forEachRemaining(row -> stored.put(field("id", row.key), field("name", row.value)));
            }
            Checks.equal(LIVING, stored);
            Checks.equal(first ? HISTORY : List.of(), seen);
        }
    }

    // --- Connect ---------------------------------------------------------------------------------

    private void sink(Worker worker) throws Exception {
        String url = "jdbc:h2:" + folder.resolve("rows")
            + ";AUTO_SERVER=TRUE;DATABASE_TO_UPPER=FALSE;CASE_INSENSITIVE_IDENTIFIERS=TRUE";
        worker.connector("sink", Map.ofEntries(
            Map.entry("connector.class", "io.debezium.connector.jdbc.JdbcSinkConnector"),
            Map.entry("topics", ROWS), Map.entry("tasks.max", "1"),
            Map.entry("key.converter", JSON_CONVERTER), Map.entry("value.converter", JSON_CONVERTER),
            Map.entry("connection.url", url), Map.entry("connection.username", "sa"),
            Map.entry("connection.password", ""), Map.entry("insert.mode", "insert"),
            Map.entry("delete.enabled", "true"), Map.entry("primary.key.mode", "record_key"),
            Map.entry("schema.evolution", "basic"), Map.entry("collection.name.format", "people")));
        try (Connection database = DriverManager.getConnection(url, "sa", "")) {
            Checks.until("the last row (" + worker.log + ")",
                () -> running(worker, "sink") && rows(database).containsKey("user-4"));
            Checks.equal(LIVING, rows(database));
        }
        worker.ask("DELETE", "/connectors/sink", "");
    }

    /** Not yet, or yes; a task that failed is one too many. */
    private static boolean running(Worker worker, String connector) throws Exception {
        JsonNode tasks = worker.ask("GET", "/connectors/" + connector + "/status", "").get("tasks");
        Checks.that(!tasks.toString().contains("FAILED"), tasks);
        return !tasks.isEmpty();
    }

    private static Map<String, String> rows(Connection database) throws SQLException {
        Map<String, String> found = new TreeMap<>();
        try (ResultSet tables = database.getMetaData().getTables(null, null, "%", null)) {
            while (tables.next()) {
                String table = tables.getString("TABLE_NAME");
                if (table.equalsIgnoreCase("people")) {
                    try (ResultSet all = database.createStatement()
                            .executeQuery("SELECT * FROM \"" + table + "\"")) {
                        while (all.next()) {
                            found.put(all.getString("id"), all.getString("name"));
                        }
                    }
                }
            }
        }
        return found;
    }

    // --- MirrorMaker -----------------------------------------------------------------------------

    private void mirror(Worker worker) throws Exception {
        worker.connector("mirror", Map.ofEntries(
            Map.entry("connector.class", "org.apache.kafka.connect.mirror.MirrorSourceConnector"),
            Map.entry("tasks.max", "1"), Map.entry("topics", ROWS + "," + STAMPED),
            Map.entry("key.converter", BYTES), Map.entry("value.converter", BYTES),
            Map.entry("source.cluster.alias", "lapse"), Map.entry("target.cluster.alias", "kafka"),
            Map.entry("source.cluster.bootstrap.servers", server),
            Map.entry("target.cluster.bootstrap.servers", target),
            Map.entry("producer.override.bootstrap.servers", target),
            Map.entry("config.properties.exclude", "lapse\\..*"),
            Map.entry("sync.topic.acls.enabled", "false"), Map.entry("replication.factor", "1"),
            Map.entry("offset-syncs.topic.replication.factor", "1"),
            Map.entry("heartbeats.topic.replication.factor", "1")));
        List<ConsumerRecord<byte[], byte[]>> from = read(server, ROWS);
        List<ConsumerRecord<byte[], byte[]>> to = read(target, "lapse." + ROWS);
        Checks.equal(HISTORY, lines(from));
        Checks.equal(HISTORY, lines(to));
        for (int i = 0; i < to.size(); i++) {
            Checks.that(Arrays.equals(from.get(i).value(), to.get(i).value()), i);
            Checks.equal(TimestampType.CREATE_TIME, to.get(i).timestampType());
            Checks.equal(from.get(i).timestamp(), to.get(i).timestamp());
        }
        try (Admin admin = Admin.create(Checks.settings(target))) {
            ConfigResource of = new ConfigResource(ConfigResource.Type.TOPIC, "lapse." + ROWS);
            Checks.equal("compact", admin.describeConfigs(List.of(of)).all().get().get(of)
                .get("cleanup.policy").value());
        }
    }

    private void mirroredStamps() throws Exception {
        List<ConsumerRecord<byte[], byte[]>> from = read(server, STAMPED);
        List<ConsumerRecord<byte[], byte[]>> to = read(target, "lapse." + STAMPED);
        Checks.equal(HISTORY, lines(to));
        long latest = from.get(from.size() - 1).timestamp();
        for (ConsumerRecord<byte[], byte[]> record : to) {
            Checks.equal(TimestampType.LOG_APPEND_TIME, record.timestampType());
            Checks.that(record.timestamp() > latest, record.timestamp() + " after " + latest);
        }
    }

    private List<ConsumerRecord<byte[], byte[]>> read(String where, String topic) throws Exception {
        List<ConsumerRecord<byte[], byte[]>> got = new ArrayList<>();
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> reader = new KafkaConsumer<>(
                Checks.settings(where, "auto.offset.reset", "earliest",
                    "allow.auto.create.topics", false), bytes, bytes)) {
            reader.assign(List.of(new TopicPartition(topic, 0)));
            Checks.until(topic, () -> {
                reader.poll(Duration.ofMillis(100)).forEach(got::add);
                return got.size() >= HISTORY.size();
            });
        }
        return got;
    }

    private static List<String> lines(List<ConsumerRecord<byte[], byte[]>> records) {
        return records.stream().map(record -> line(
            new String(record.key(), StandardCharsets.UTF_8), record.value() == null
                ? null : new String(record.value(), StandardCharsets.UTF_8))).toList();
    }

    /** Keys and values are JSON with a schema, as the sink wants them. */
    private static String line(String key, String value) {
        return field("id", key) + " = " + field("name", value);
    }

    private static String field(String name, String json) {
        try {
            return json == null ? null : JSON.readTree(json).get("payload").get(name).asText();
        } catch (IOException e) {
            throw new IllegalArgumentException(json, e);
        }
    }
}
