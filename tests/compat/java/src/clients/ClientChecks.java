import java.util.List;
import java.util.Map;
import java.util.UUID;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.common.utils.AppInfoParser;

/** The Java clients against a broker; compiled with the oldest of them, run with each. */
final class ClientChecks {
    final String server;
    final Checks checks;
    final Admin admin;
    final String run = UUID.randomUUID().toString().substring(0, 8);

    private ClientChecks(String server, Checks checks) {
        this.server = server;
        this.checks = checks;
        admin = Admin.create(Checks.settings(server));
    }

    public static void main(String[] arguments) {
        System.err.println("kafka-clients " + AppInfoParser.getVersion());
        Checks checks = new Checks(arguments[1], arguments[0]);
        ClientChecks all = new ClientChecks(arguments[0], checks);
        new DataChecks(all).run();
        new GroupChecks(all).run();
        new AdminChecks(all).run();
        new InterfaceChecks(all).run();
        checks.end();
    }

    String topic(String name, int partitions, Map<String, String> configs) throws Exception {
        String full = name + "-" + run;
        admin.createTopics(List.of(new NewTopic(full, partitions, (short) 1).configs(configs)))
            .all().get();
        return full;
    }

    /** Kept whatever times its records have: they are of 1970 and 2020. */
    String topic(String name, int partitions) throws Exception {
        return topic(name, partitions, Map.of("retention.ms", "-1"));
    }
}
