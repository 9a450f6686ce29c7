import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.UUID;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/** Kafka's command-line tools against a broker, in one process. */
final class ToolChecks {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final String GROUPS = "consumer.group.ConsumerGroupCommand";
    private static final String CONFIGS = "kafka.admin.ConfigCommand";
    private static final String REASSIGN = "reassign.ReassignPartitionsCommand";
    private static final String CONSOLE = "consumer.ConsoleConsumer";
    private static final int NO_BROKER = 77;

    private final String server;
    private final Checks checks;
    private final Admin admin;
    private final String node;
    private final String run = UUID.randomUUID().toString().substring(0, 8);

    private ToolChecks(String server, Checks checks) throws Exception {
        this.server = server;
        this.checks = checks;
        admin = Admin.create(Checks.settings(server));
        node = admin.describeCluster().nodes().get().iterator().next().idString();
    }

    public static void main(String[] arguments) throws Exception {
        Checks checks = new Checks(arguments[1], arguments[0]);
        ToolChecks all = new ToolChecks(arguments[0], checks);
        all.lookAround();
        all.settings();
        all.offsets();
        all.writeAndRead();
        all.measure();
        all.transact();
        checks.end();
    }

    private Tool.Result run(String name, String... arguments) {
        List<String> all = new ArrayList<>(List.of("--bootstrap-server", server));
        all.addAll(Arrays.asList(arguments));
        return Tool.run(name, all.toArray(String[]::new));
    }

    private String said(String name, String... arguments) {
        return run(name, arguments).fine();
    }

    private String topic(String name, int partitions, String... settings) throws Exception {
        // Kept whatever times its records have.
        Map<String, String> configs = new TreeMap<>(Map.of("retention.ms", "-1"));
        Arrays.stream(settings).map(s -> s.split("=")).forEach(s -> configs.put(s[0], s[1]));
        String full = name + "-" + run;
        admin.createTopics(List.of(new NewTopic(full, partitions, (short) 1).configs(configs)))
            .all().get();
        return full;
    }

    /** `n` records key N → value N, from time 1000 on, a second apart. */
    private void fill(String topic, int partition, int n) {
        Properties settings = Checks.settings(server);
        StringSerializer text = new StringSerializer();
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings, text, text)) {
            for (int i = 0; i < n; i++) {
                long time = 1000L * (i + 1);
                producer.send(new ProducerRecord<>(topic, partition, time, "k" + i, "v" + i));
            }
        }
    }

    private List<String> values(String topic, int count) {
        String printed = said(CONSOLE, "--topic", topic, "--from-beginning", "--max-messages",
            "" + count, "--timeout-ms", "20000", "--isolation-level", "read_committed");
        List<String> sorted = new ArrayList<>(printed.lines().toList());
        Collections.sort(sorted);
        return sorted;
    }

    private static List<String> numbered(String prefix, int count) {
        return IntStream.range(0, count).mapToObj(i -> prefix + i).sorted().toList();
    }

    private static JsonNode json(String text) throws Exception {
        return JSON.readTree(text);
    }

    /** Of the lines of JSON that a verifiable tool prints, those of one kind. */
    private static List<JsonNode> named(String printed, String name) throws Exception {
        List<JsonNode> found = new ArrayList<>();
        for (String line : printed.lines().filter(l -> l.startsWith("{")).toList()) {
            JsonNode event = json(line);
            if (event.get("name").asText().equals(name)) {
                found.add(event);
            }
        }
        return found;
    }

    private static Path file(String text) throws Exception {
        Path path = Files.createTempFile("tool", ".json");
        path.toFile().deleteOnExit();
        return Files.writeString(path, text);
    }

    private void lookAround() {
        checks.check("cluster-tool", () -> {
            String[] id = Tool.run("ClusterTool", "cluster-id", "--bootstrap-server", server)
                .fine().trim().split(" ");
            Checks.equal(22, id[id.length - 1].length());
            Checks.has(Tool.run("ClusterTool", "list-endpoints", "--bootstrap-server", server)
                .fine(), server.split(":")[1]);
        });
        checks.check("broker-api-versions", () -> {
            String printed = said("BrokerApiVersionsCommand");
            Checks.has(printed, "Produce(0): 0 to ");
            Checks.has(printed, "ApiVersions(18): 0 to ");
            Checks.has(printed, "(id: " + node + " ");
        });
        checks.check("features", () -> {
            String told = run("FeatureCommand", "describe").fine();
            Checks.has(told, "group.version");
            Checks.has(told, "lapse.tombstone.values");
            String refused = run("FeatureCommand", "upgrade", "--feature", "metadata.version=20").refused();
            Checks.has(refused, "metadata.version");
        });
        checks.check("leader-election", () -> {
            String topic = topic("elected", 2);
            Checks.has(said("LeaderElectionCommand", "--election-type", "preferred", "--topic",
                topic, "--partition", "0"), "Valid replica already elected");
            Checks.has(said("LeaderElectionCommand", "--election-type", "unclean", "--topic",
                topic, "--partition", "1"), "Valid replica already elected");
            said("LeaderElectionCommand", "--election-type", "preferred", "--all-topic-partitions");
            Checks.has(run("LeaderElectionCommand", "--election-type", "preferred", "--topic",
                "none-" + run, "--partition", "0").refused(), "Error completing leader election");
        });
        checks.check("reassign-partitions", () -> {
            String topic = topic("reassigned", 1);
            Checks.has(said(REASSIGN, "--list"), "No partition reassignments found");
            String topics = "{\"version\":1,\"topics\":[{\"topic\":\"" + topic + "\"}]}";
            String generated = said(REASSIGN, "--generate", "--broker-list", node,
                "--topics-to-move-json-file", file(topics).toString());
            List<String> lines = generated.lines().toList();
            Path plan = file(lines.get(lines.size() - 1));
            said(REASSIGN, "--execute", "--reassignment-json-file", plan.toString());
            Checks.has(said(REASSIGN, "--verify", "--reassignment-json-file", plan.toString()),
                topic + "-0 is completed");
            Path elsewhere = file(lines.get(lines.size() - 1)
                .replaceAll("\"replicas\":\\[\\d+]", "\"replicas\":[" + NO_BROKER + "]"));
            Checks.has(run(REASSIGN, "--execute", "--reassignment-json-file",
                elsewhere.toString()).refused(), "Unknown broker id " + NO_BROKER);
        });
        checks.check("log-dirs", () -> {
            String topic = topic("stored", 2);
            fill(topic, 1, 10);
            String printed = said("LogDirsCommand", "--describe", "--topic-list", topic);
            JsonNode told = json(printed.lines().filter(l -> l.startsWith("{")).findFirst()
                .orElseThrow()).get("brokers").get(0);
            Checks.equal(node, told.get("broker").asText());
            Map<String, Long> sizes = new TreeMap<>();
            told.get("logDirs").get(0).get("partitions").forEach(
                p -> sizes.put(p.get("partition").asText(), p.get("size").asLong()));
            Checks.equal(0L, sizes.get(topic + "-0"));
            Checks.that(sizes.get(topic + "-1") > 100, sizes);
        });
        checks.check("topics", () -> {
            String topic = "listed-" + run;
            said("TopicCommand", "--create", "--topic", topic, "--partitions", "2");
            said("TopicCommand", "--alter", "--topic", topic, "--partitions", "3");
            Checks.has(said("TopicCommand", "--describe", "--topic", topic), "PartitionCount: 3");
            Checks.that(said("TopicCommand", "--list").lines().toList().contains(topic), topic);
            said("TopicCommand", "--delete", "--topic", topic);
            Checks.that(!said("TopicCommand", "--list").lines().toList().contains(topic), topic);
        });
        checks.check("acls", () -> Checks.has(run("AclCommand", "--list").refused(),
            "SecurityDisabledException"));
        checks.check("client-compatibility-test", () -> {
            said("ClientCompatibilityTest", "--topic", topic("compatible", 3),
                "--offsets-for-times-supported", "true", "--cluster-id-supported", "true",
                "--expect-record-too-large-exception", "false", "--num-cluster-nodes", "1",
                "--create-topics-supported", "true", "--describe-acls-supported", "true",
                "--describe-configs-supported", "true", "--idempotent-producer-supported", "true");
            admin.deleteTopics(List.of("newtopic")).all().get(); // for another run of it
        });
    }

    private void settings() {
        checks.check("configs-of-a-topic", () -> {
            String topic = topic("set", 1);
            String[] named = {"--entity-type", "topics", "--entity-name", topic};
            said(CONFIGS, with(named, "--alter", "--add-config",
                "retention.ms=60000,cleanup.policy=[compact,delete]"));
            String told = said(CONFIGS, with(named, "--describe"));
            Checks.has(told, "retention.ms=60000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:");
            Checks.has(told, "cleanup.policy=compact,delete ");
            said(CONFIGS, with(named, "--alter", "--delete-config", "retention.ms"));
            Checks.that(!said(CONFIGS, with(named, "--describe")).contains("retention.ms="), topic);
            run(CONFIGS, with(named, "--alter", "--add-config", "retention.ms=x")).refused();
        });
        checks.check("configs-of-a-broker", () -> {
            String[] named = {"--entity-type", "brokers", "--entity-name", node};
            String name = "log.cleaner.delete.retention.ms";
            said(CONFIGS, with(named, "--alter", "--add-config", name + "=86400001"));
            Checks.until("the setting", () -> said(CONFIGS, with(named, "--describe"))
                .contains(name + "=86400001 "));
            said(CONFIGS, with(named, "--alter", "--delete-config", name));
            Checks.until("the default", () -> said(CONFIGS, with(named, "--describe", "--all"))
                .contains(name + "=86400000 ")); // Kafka's controller answers before its broker knows
        });
        checks.check("configs-of-users-and-clients", () -> {
            String[] named = {"--entity-type", "users", "--entity-name", "alice",
                "--entity-type", "clients", "--entity-name", "app"};
            said(CONFIGS, with(named, "--alter", "--add-config", "producer_byte_rate=1048576"));
            Checks.has(said(CONFIGS, with(named, "--describe")), "producer_byte_rate=1048576.0");
            said(CONFIGS, with(named, "--alter", "--delete-config", "producer_byte_rate"));
            Checks.that(!said(CONFIGS, with(named, "--describe")).contains("byte_rate"), "there");
        });
    }

    private static String[] with(String[] first, String... more) {
        List<String> all = new ArrayList<>(Arrays.asList(first));
        all.addAll(Arrays.asList(more));
        return all.toArray(String[]::new);
    }

    private void offsets() {
        checks.check("get-offset-shell", () -> {
            String topic = topic("counted", 2);
            fill(topic, 0, 10);
            Map<String, String> expected = new TreeMap<>(Map.of(
                "latest", "0:10 1:0", "earliest", "0:0 1:0", "-2", "0:0 1:0",
                "earliest-local", "0:0 1:0", "3500", "0:3 1:", "max-timestamp", "0:9 1:"));
            expected.put("99000", "0: 1:"); // later than every record
            Map<String, String> seen = new TreeMap<>();
            for (String time : expected.keySet()) {
                seen.put(time, said("GetOffsetShell", "--topic", topic, "--time", time)
                    .lines().map(l -> l.substring(topic.length() + 1))
                    .collect(Collectors.joining(" ")));
            }
            // A partition without an answer is left out, or printed without an offset.
            seen.replaceAll((time, text) -> text.contains("1:") ? text : (text + " 1:").strip());
            seen.replaceAll((time, text) -> text.contains("0:") ? text : "0: " + text);
            Checks.equal(expected, seen);
            Checks.equal(topic + ":1:0", said("GetOffsetShell", "--topic-partitions", topic + ":1")
                .trim());
        });
        checks.check("delete-records", () -> {
            String topic = topic("cut", 1);
            fill(topic, 0, 10);
            Path wanted = file("{\"version\":1,\"partitions\":[{\"topic\":\"" + topic
                + "\",\"partition\":0,\"offset\":4}]}");
            Checks.has(said("DeleteRecordsCommand", "--offset-json-file", wanted.toString()),
                "partition: " + topic + "-0\tlow_watermark: 4");
            Checks.equal(topic + ":0:4", said("GetOffsetShell", "--topic", topic, "--time",
                "earliest").trim());
        });
    }

    private void writeAndRead() {
        checks.check("console-producer-and-consumer", () -> {
            String topic = topic("console", 1);
            String lines = numbered("value", 100).stream().map(v -> v + "\n")
                .collect(Collectors.joining());
            Tool.runWith(lines, "ConsoleProducer", "--bootstrap-server", server, "--topic", topic,
                "--compression-codec", "lz4").fine();
            Checks.equal(numbered("value", 100), values(topic, 100));
        });
        checks.check("consumer-groups", () -> {
            String topic = topic("grouped", 1);
            String group = "g-" + run;
            fill(topic, 0, 10);
            said(CONSOLE, "--topic", topic, "--from-beginning", "--max-messages", "10", "--group",
                group, "--timeout-ms", "20000");
            String[] named = {"--group", group};
            Checks.that(said(GROUPS, "--list").lines().toList().contains(group), group);
            String row = said(GROUPS, with(named, "--describe")).lines()
                .filter(l -> l.startsWith(group)).findFirst().orElseThrow();
            Checks.equal(List.of(group, topic, "0", "10", "10", "0"),
                Arrays.stream(row.split("\\s+")).filter(f -> !f.equals("-")).limit(6).toList());
            said(GROUPS, with(named, "--reset-offsets", "--to-offset", "4", "--topic", topic,
                "--execute"));
            Checks.has(said(GROUPS, with(named, "--describe", "--state")), "Empty");
            Checks.equal(6, values(topic, group));
            said(GROUPS, with(named, "--delete"));
            Checks.that(!said("GroupsCommand", "--list").contains(group), group);
        });
        checks.check("verifiable-producer-and-consumer", () -> {
            String topic = topic("verified", 2);
            fill(topic, 0, 1); // the tool tries once; Kafka may not know yet that it leads
            fill(topic, 1, 1);
            String sent = Tool.verifiable("VerifiableProducer", "--bootstrap-server", server,
                "--topic", topic, "--max-messages", "500", "--acks", "-1").fine();
            Checks.equal(500, named(sent, "producer_send_success").size());
            Checks.equal(0, named(sent, "producer_send_error").size());
            String read = Tool.verifiable("VerifiableConsumer", "--bootstrap-server", server,
                "--topic", topic, "--group-id", "verified-" + run, "--max-messages", "502",
                "--reset-policy", "earliest", "--session-timeout", "10000").fine();
            int count = named(read, "records_consumed").stream()
                .mapToInt(e -> e.get("count").asInt()).sum();
            Checks.equal(502, count);
            for (JsonNode commit : named(read, "offsets_committed")) {
                Checks.that(commit.get("success").asBoolean(), commit);
            }
            Checks.equal(1, named(read, "partitions_assigned").size());
        });
    }

    /** How many a group still reads. */
    private int values(String topic, String group) {
        return (int) said(CONSOLE, "--topic", topic, "--group", group, "--timeout-ms", "20000",
            "--max-messages", "6").lines().count();
    }

    private void measure() {
        checks.check("producer-performance", () -> {
            String told = Tool.run("ProducerPerformance", "--bootstrap-server", server, "--topic",
                topic("fast", 2), "--num-records", "2000", "--record-size", "100", "--throughput",
                "-1", "--command-property", "compression.type=zstd").fine();
            Checks.has(told, "2000 records sent");
        });
        checks.check("producer-performance-in-transactions", () -> {
            String topic = topic("fast-transactional", 1);
            Checks.has(Tool.run("ProducerPerformance", "--bootstrap-server", server, "--topic",
                topic, "--num-records", "2000", "--record-size", "20", "--throughput", "20000",
                "--transaction-duration-ms", "20", "--transactional-id", "fast-" + run).fine(),
                "2000 records sent");
            Checks.equal(2000, values(topic, 2000).size());
        });
        checks.check("consumer-performance", () -> {
            String topic = topic("consumed", 1);
            fill(topic, 0, 1000);
            String told = said("ConsumerPerformance", "--topic", topic, "--num-records", "1000",
                "--hide-header");
            Checks.equal("1000", told.trim().split(", ")[4]);
        });
        checks.check("end-to-end-latency", () -> Checks.has(Tool.run("EndToEndLatency", server,
            topic("there-and-back", 1), "50", "all", "100").fine(), "Percentiles: 50th = "));
    }

    private void transact() {
        checks.check("transactional-message-copier", () -> {
            String from = topic("original", 1);
            String to = topic("copy", 1);
            fill(from, 0, 300);
            Tool.run("TransactionalMessageCopier", "--broker-list", server, "--transactional-id",
                "copier-" + run, "--transaction-size", "20", "--input-topic", from,
                "--input-partition", "0", "--output-topic", to, "--consumer-group",
                "copier-" + run, "--enable-random-aborts", "--use-group-metadata").fine();
            Checks.equal(numbered("v", 300), values(to, 300));
            Checks.has(said(GROUPS, "--group", "copier-" + run, "--describe").lines()
                .filter(l -> l.contains(from)).findFirst().orElseThrow(), " 300 ");
        });
        checks.check("transactional-message-copier-in-a-group", () -> {
            String from = topic("original-grouped", 2);
            String to = topic("copy-grouped", 2);
            fill(from, 0, 100);
            fill(from, 1, 100);
            Tool.run("TransactionalMessageCopier", "--broker-list", server, "--transactional-id",
                "group-copier-" + run, "--transaction-size", "20", "--input-topic", from,
                "--input-partition", "-1", "--output-topic", to, "--consumer-group",
                "group-copier-" + run, "--group-mode", "--use-group-metadata", "--max-messages",
                "200").fine();
            Checks.equal(200, values(to, 200).size());
        });
        checks.check("transactions", () -> {
            String topic = topic("hanging", 1);
            String id = "hanging-" + run;
            Properties settings = Checks.settings(server, "transactional.id", id);
            StringSerializer text = new StringSerializer();
            try (KafkaProducer<String, String> one = new KafkaProducer<>(settings, text, text)) {
                one.initTransactions();
                one.beginTransaction();
                one.send(new ProducerRecord<>(topic, "v")).get();
                Checks.has(row(said("TransactionsCommand", "list"), id), "Ongoing");
                Checks.has(said("TransactionsCommand", "describe", "--transactional-id", id),
                    topic + "-0");
                String[] at = {"--topic", topic, "--partition", "0"};
                Checks.has(said("TransactionsCommand", with(new String[] {"describe-producers"},
                    at)), "ProducerId");
                said("TransactionsCommand", with(new String[] {"find-hanging"}, at));
                said("TransactionsCommand", with(new String[] {"abort"},
                    with(at, "--start-offset", "0")));
                Checks.equal(List.of(), readable(topic));
            }
        });
        checks.check("transactions-are-terminated", () -> {
            String topic = topic("terminated", 1);
            String id = "terminated-" + run;
            Properties settings = Checks.settings(server, "transactional.id", id);
            StringSerializer text = new StringSerializer();
            KafkaProducer<String, String> one = new KafkaProducer<>(settings, text, text);
            one.initTransactions();
            one.beginTransaction();
            one.send(new ProducerRecord<>(topic, "v")).get();
            said("TransactionsCommand", "forceTerminateTransaction", "--transactionalId", id);
            Checks.until("the end", () -> !row(said("TransactionsCommand", "list"), id)
                .contains("Ongoing"));
            Checks.equal(List.of(), readable(topic));
            Checks.fails(org.apache.kafka.common.KafkaException.class, one::commitTransaction);
            one.close(java.time.Duration.ZERO);
        });
    }

    private List<String> readable(String topic) {
        return said(CONSOLE, "--topic", topic, "--partition", "0", "--offset", "earliest",
            "--isolation-level", "read_committed", "--timeout-ms", "500").lines().toList();
    }

    private static String row(String table, String id) {
        return table.lines().filter(l -> l.startsWith(id)).findFirst().orElseThrow();
    }
}
