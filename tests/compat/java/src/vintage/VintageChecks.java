import java.io.File;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.net.URL;
import java.net.URLClassLoader;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Supplier;
import javax.security.auth.login.AppConfigurationEntry;
import javax.security.auth.login.Configuration;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.common.TopicPartition;

/**
 * Java clients from before KIP-896 in one process, each version in a class loader of its own.
 * `VINTAGE` in the environment has a line a version: its number, and its class path. `VINTAGE_SASL` is
 * a listener's address where user `old` logs in by PLAIN with the password `secret`, if there is one.
 */
final class VintageChecks {
    private static final int COUNT = 20;
    private static final int DELETED = 7;
    private static final List<String> ENDS = List.of("0.9.0.1", "2.8.2");
    private static final List<String> NEWEST = List.of("2.8.2");
    private static final List<String> BEFORE_PLAIN = List.of("0.9.0.1");
    private static final List<String> BEFORE_TIMES = List.of("0.9.0.1", "0.10.0.1");
    // What the brokers of their time wrote; none where that is what brokers write today.
    private static final Map<String, String> FORMATS =
        Map.of("0.9.0.1", "0.9.0", "0.10.0.1", "0.10.0", "0.10.2.2", "0.10.2");

    private final Map<String, Client> clients = new LinkedHashMap<>();
    private final Checks checks;
    private final Admin admin;
    private int topics;
    private final String run = UUID.randomUUID().toString().substring(0, 8);

    /** One version of the clients. */
    private static final class Client {
        private final ClassLoader loader;
        private final Object client;

        private final String classPath;

        Client(String classPath, Map<String, Object> settings) throws Exception {
            this.classPath = classPath;
            List<URL> urls = new ArrayList<>();
            for (String path : classPath.split(File.pathSeparator)) {
                urls.add(new File(path).toURI().toURL());
            }
            loader = new URLClassLoader(
                urls.toArray(new URL[0]), ClassLoader.getPlatformClassLoader());
            client = loader.loadClass("OldClient").getConstructor(Map.class).newInstance(settings);
        }

        /** Old clients find serializers by the thread's class loader. */
        @SuppressWarnings("unchecked")
        <T> T call(String name, Object... arguments) throws Exception {
            Thread.currentThread().setContextClassLoader(loader);
            for (Method method : client.getClass().getMethods()) {
                if (method.getName().equals(name)) {
                    try {
                        return (T) method.invoke(client, arguments);
                    } catch (InvocationTargetException e) {
                        throw new Exception(e.getCause());
                    }
                }
            }
            throw new NoSuchMethodException(name);
        }
    }

    private VintageChecks(String server, Checks checks) throws Exception {
        this.checks = checks;
        admin = Admin.create(Checks.settings(server));
        for (String line : System.getenv("VINTAGE").strip().split("\n")) {
            String[] parts = line.split(" ", 2);
            clients.put(parts[0], new Client(parts[1], Map.of("bootstrap.servers", server)));
        }
    }

    public static void main(String[] arguments) throws Exception {
        Checks checks = new Checks(arguments[1], arguments[0]);
        new VintageChecks(arguments[0], checks).run();
        checks.end();
    }

    private void run() {
        clients.forEach((version, client) -> {
            for (String codec : codecs(version)) {
                checks.check("writes-" + codec + "-" + version,
                    () -> writes(client, codec, topic("writes", 1)));
            }
            if (FORMATS.containsKey(version)) {
                checks.check("own-format-" + version, () -> writes(client, "gzip", topic(
                    "own-format", 1, Map.of("message.format.version", FORMATS.get(version)))));
            }
            checks.check("group-" + version, () -> group(client));
            checks.check("earliest-and-latest-" + version, () -> ends(client));
            if (!FORMATS.containsKey(version)) {
                checks.check("transactions-" + version, () -> transactions(client));
            }
            if (!BEFORE_TIMES.contains(version)) {
                checks.check("by-time-" + version, () -> byTime(client));
            }
        });
        if (System.getenv("VINTAGE_SASL") != null) {
            Configuration.setConfiguration(new Login());
            clients.forEach((version, client) -> {
                if (!BEFORE_PLAIN.contains(version)) {
                    checks.check("logs-in-by-plain-" + version, () -> logsIn(client));
                }
            });
        }
        checks.check("a-group-goes-through-all-versions", this::handedOn);
        checks.check("oldest-and-newest-share-a-group", this::together);
    }

    private static List<String> codecs(String version) {
        return NEWEST.contains(version)
            ? List.of("none", "gzip", "snappy", "lz4", "zstd")
            : List.of("none", "gzip", "snappy", "lz4");
    }

    private void writes(Client client, String codec, String topic) throws Exception {
        sends(client, codec, topic);
        for (String reader : codec.equals("zstd") ? NEWEST : ENDS) { // whoever wrote it
            reads(clients.get(reader), reader + "-reads-" + topic, topic);
        }
    }

    private void sends(Client client, String codec, String topic) throws Exception {
        List<Long> offsets = client.call("send", topic, 0, codec, "v", COUNT);
        Checks.equal(COUNT, offsets.size());
        for (int i = 0; i < COUNT; i++) {
            Checks.equal((long) i, offsets.get(i));
        }
    }

    private void reads(Client client, String group, String topic) throws Exception {
        List<String> got = client.call("group", topic, group, COUNT);
        Checks.equal(new TreeSet<>(expected(0, 0, "v")), new TreeSet<>(got));
    }

    /** A second member of the group goes on where the first one ended. */
    private void group(Client client) throws Exception {
        String topic = topic("group", 2);
        for (String step : List.of("first", "second")) {
            List<String> sent = new ArrayList<>();
            for (int partition = 0; partition < 2; partition++) {
                List<Long> offsets = client.call("send", topic, partition, "none", step, COUNT);
                sent.addAll(expected(partition, offsets.get(0), step));
            }
            List<String> got = client.call("group", topic, "group-" + topic, 2 * COUNT);
            Checks.equal(new TreeSet<>(sent), new TreeSet<>(got));
            Checks.equal(2 * COUNT, got.size());
        }
    }

    /** An offset each for the aborted records, and one for their marker. */
    private void transactions(Client client) throws Exception {
        String topic = topic("transactions", 1);
        client.call("transactions", topic, 0, "id-" + topic, COUNT);
        List<String> got = client.call("group", topic, "reads-" + topic, COUNT);
        Checks.equal(new TreeSet<>(expected(0, COUNT + 1, "committed")), new TreeSet<>(got));
    }

    private void ends(Client client) throws Exception {
        String topic = topic("ends", 1);
        Checks.equal(List.of(0L, 0L), client.call("ends", topic, 0));
        client.call("send", topic, 0, "none", "v", COUNT);
        Checks.equal(List.of(0L, (long) COUNT), client.call("ends", topic, 0));
        admin.deleteRecords(Map.of(
            new TopicPartition(topic, 0), RecordsToDelete.beforeOffset(DELETED))).all().get();
        Checks.equal(List.of((long) DELETED, (long) COUNT), client.call("ends", topic, 0));
    }

    private void byTime(Client client) throws Exception {
        String topic = topic("time", 1);
        long before = System.currentTimeMillis();
        client.call("send", topic, 0, "none", "v", COUNT);
        long between = System.currentTimeMillis() + 1;
        Thread.sleep(5);
        client.call("send", topic, 0, "gzip", "w", COUNT);
        String first = client.call("atTime", topic, 0, before);
        String later = client.call("atTime", topic, 0, between);
        Checks.equal("0", first.split(" ")[0]);
        Checks.equal("" + COUNT, later.split(" ")[0]);
        Checks.that(Long.parseLong(later.split(" ")[1]) >= between, later);
        Checks.equal(null, client.call("atTime", topic, 0, between + 3_600_000L));
    }

    /** Up to 0.11 with bare tokens behind the handshake. */
    private void logsIn(Client client) throws Exception {
        Client secured = new Client(client.classPath, Map.of(
            "bootstrap.servers", System.getenv("VINTAGE_SASL"),
            "security.protocol", "SASL_PLAINTEXT", "sasl.mechanism", "PLAIN"));
        String topic = topic("logs-in", 1);
        sends(secured, "gzip", topic);
        reads(secured, "logs-in-" + topic, topic);
    }

    /** Old clients find their users there. */
    private static final class Login extends Configuration {
        @Override
        public AppConfigurationEntry[] getAppConfigurationEntry(String name) {
            return new AppConfigurationEntry[] {new AppConfigurationEntry(
                "org.apache.kafka.common.security.plain.PlainLoginModule",
                AppConfigurationEntry.LoginModuleControlFlag.REQUIRED,
                Map.of("username", "old", "password", "secret"))};
        }
    }

    /** The group's offsets are everybody's: each version reads what was written since. */
    private void handedOn() throws Exception {
        String topic = topic("handed-on", 1);
        List<String> order = new ArrayList<>(clients.keySet());
        order.add(order.get(0)); // and back again
        for (String version : order) {
            List<Long> offsets = clients.get(version).call("send", topic, 0, "gzip", version, COUNT);
            List<String> got = clients.get(version).call("group", topic, "handed-on-" + run, COUNT);
            Checks.equal(
                new TreeSet<>(expected(0, offsets.get(0), version)), new TreeSet<>(got));
        }
    }

    /** A rolling upgrade: both in one group, a partition each. */
    private void together() throws Exception {
        String topic = topic("together", 2);
        AtomicBoolean done = new AtomicBoolean();
        Supplier<Boolean> goesOn = () -> !done.get();
        Map<String, Set<Integer>> held = new ConcurrentHashMap<>();
        List<Thread> threads = new ArrayList<>();
        for (String version : ENDS) {
            Thread thread = new Thread(() -> {
                try {
                    Supplier<Set<Integer>> member =
                        clients.get(version).call("member", topic, "together-" + topic, goesOn);
                    for (Set<Integer> mine = member.get(); mine != null; mine = member.get()) {
                        held.put(version, mine);
                    }
                } catch (Exception e) {
                    e.printStackTrace();
                }
            });
            thread.setDaemon(true);
            thread.start();
            threads.add(thread);
        }
        Checks.until("a partition for each", () ->
            held.values().stream().filter(mine -> mine.size() == 1).count() == 2
                && held.values().stream().flatMap(Set::stream).distinct().count() == 2);
        done.set(true);
        for (Thread thread : threads) {
            thread.join(10_000);
        }
    }

    private static List<String> expected(int partition, long from, String prefix) {
        List<String> all = new ArrayList<>();
        for (int i = 0; i < COUNT; i++) {
            all.add(partition + "/" + (from + i) + " " + prefix + " " + i);
        }
        return all;
    }

    private String topic(String name, int partitions) throws Exception {
        return topic(name, partitions, Map.of());
    }

    private String topic(String name, int partitions, Map<String, String> configs)
            throws Exception {
        String full = "vintage-" + name + "-" + ++topics + "-" + run;
        admin.createTopics(List.of(new NewTopic(full, partitions, (short) 1).configs(configs)))
            .all().get();
        return full;
    }
}
