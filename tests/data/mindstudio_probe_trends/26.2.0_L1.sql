BEGIN TRANSACTION;
CREATE TABLE global_stats (
            max_rank INTEGER DEFAULT 0, min_step INTEGER DEFAULT 0, max_step INTEGER DEFAULT 0, forward TEXT DEFAULT NULL, backward TEXT DEFAULT NULL, recompute TEXT DEFAULT NULL, parameters_grad TEXT DEFAULT NULL
        );
INSERT INTO "global_stats" VALUES(0,0,0,'norm,max,min,mean','norm,max,min,mean','norm,max,min,mean','norm,max,min,mean');
CREATE TABLE monitoring_metrics (
            metric_id INTEGER PRIMARY KEY AUTOINCREMENT,
            metric_name TEXT UNIQUE NOT NULL
        );
INSERT INTO "monitoring_metrics" VALUES(1,'forward');
INSERT INTO "monitoring_metrics" VALUES(2,'backward');
INSERT INTO "monitoring_metrics" VALUES(3,'recompute');
INSERT INTO "monitoring_metrics" VALUES(4,'parameters_grad');
CREATE TABLE monitoring_tags (
            tag_id INTEGER PRIMARY KEY AUTOINCREMENT,
            tag_name TEXT NOT NULL,
            category TEXT NOT NULL,
            metric_id INTEGER NOT NULL,
            UNIQUE(tag_name, category, metric_id),
            FOREIGN KEY (metric_id) REFERENCES monitoring_metrics(metric_id)
        );
INSERT INTO "monitoring_tags" VALUES(1,'Tensor.__mul__','function',1);
INSERT INTO "monitoring_tags" VALUES(2,'input.0','index',1);
INSERT INTO "monitoring_tags" VALUES(3,'output.0','index',1);
INSERT INTO "monitoring_tags" VALUES(4,'Torch.relu','function',1);
INSERT INTO "monitoring_tags" VALUES(5,'Tensor.mean','function',1);
INSERT INTO "monitoring_tags" VALUES(6,'input.2','index',1);
INSERT INTO "monitoring_tags" VALUES(7,'input.3','index',1);
INSERT INTO "monitoring_tags" VALUES(8,'Functional.linear','function',1);
INSERT INTO "monitoring_tags" VALUES(9,'Tensor.pow','function',1);
INSERT INTO "monitoring_tags" VALUES(10,'input.1','index',1);
INSERT INTO "monitoring_tags" VALUES(11,'Functional.layer_norm','function',1);
INSERT INTO "monitoring_tags" VALUES(12,'output.1','index',2);
INSERT INTO "monitoring_tags" VALUES(13,'Functional.layer_norm','function',2);
INSERT INTO "monitoring_tags" VALUES(14,'Tensor.__mul__','function',2);
INSERT INTO "monitoring_tags" VALUES(15,'input.0','index',2);
INSERT INTO "monitoring_tags" VALUES(16,'output.0','index',2);
INSERT INTO "monitoring_tags" VALUES(17,'Torch.relu','function',2);
INSERT INTO "monitoring_tags" VALUES(18,'Tensor.mean','function',2);
INSERT INTO "monitoring_tags" VALUES(19,'output.2','index',2);
INSERT INTO "monitoring_tags" VALUES(20,'Tensor.pow','function',2);
INSERT INTO "monitoring_tags" VALUES(21,'Functional.linear','function',2);
CREATE TABLE monitoring_targets (
            target_id INTEGER PRIMARY KEY AUTOINCREMENT,
            target_name TEXT NOT NULL,
            vpp_stage INTEGER NOT NULL,
            micro_step INTEGER NOT NULL DEFAULT 0,
            UNIQUE(target_name, vpp_stage, micro_step)
        );
INSERT INTO "monitoring_targets" VALUES(1,'Functional.linear.input.0',0,0);
INSERT INTO "monitoring_targets" VALUES(2,'Functional.linear.input.1',0,0);
INSERT INTO "monitoring_targets" VALUES(3,'Functional.linear.input.2',0,0);
INSERT INTO "monitoring_targets" VALUES(4,'Functional.linear.output.0',0,0);
INSERT INTO "monitoring_targets" VALUES(5,'Functional.layer_norm.input.0',0,0);
INSERT INTO "monitoring_targets" VALUES(6,'Functional.layer_norm.input.2',0,0);
INSERT INTO "monitoring_targets" VALUES(7,'Functional.layer_norm.input.3',0,0);
INSERT INTO "monitoring_targets" VALUES(8,'Functional.layer_norm.output.0',0,0);
INSERT INTO "monitoring_targets" VALUES(9,'Torch.relu.input.0',0,0);
INSERT INTO "monitoring_targets" VALUES(10,'Torch.relu.output.0',0,0);
INSERT INTO "monitoring_targets" VALUES(11,'Tensor.__mul__.input.0',0,0);
INSERT INTO "monitoring_targets" VALUES(12,'Tensor.__mul__.output.0',0,0);
INSERT INTO "monitoring_targets" VALUES(13,'Tensor.__mul__.input.0',0,1);
INSERT INTO "monitoring_targets" VALUES(14,'Tensor.__mul__.output.0',0,1);
INSERT INTO "monitoring_targets" VALUES(15,'Functional.linear.input.0',0,1);
INSERT INTO "monitoring_targets" VALUES(16,'Functional.linear.input.1',0,1);
INSERT INTO "monitoring_targets" VALUES(17,'Functional.linear.input.2',0,1);
INSERT INTO "monitoring_targets" VALUES(18,'Functional.linear.output.0',0,1);
INSERT INTO "monitoring_targets" VALUES(19,'Tensor.pow.input.0',0,0);
INSERT INTO "monitoring_targets" VALUES(20,'Tensor.pow.output.0',0,0);
INSERT INTO "monitoring_targets" VALUES(21,'Tensor.mean.input.0',0,0);
INSERT INTO "monitoring_targets" VALUES(22,'Tensor.mean.output.0',0,0);
INSERT INTO "monitoring_targets" VALUES(29,'Functional.linear.output.1',0,1);
INSERT INTO "monitoring_targets" VALUES(30,'Functional.linear.output.2',0,1);
INSERT INTO "monitoring_targets" VALUES(39,'Functional.layer_norm.output.1',0,0);
INSERT INTO "monitoring_targets" VALUES(40,'Functional.layer_norm.output.2',0,0);
INSERT INTO "monitoring_targets" VALUES(43,'Functional.linear.output.2',0,0);
CREATE TABLE tag_target_mapping (
            tag_id INTEGER NOT NULL,
            target_id INTEGER NOT NULL,
            PRIMARY KEY (tag_id, target_id),
            FOREIGN KEY (tag_id) REFERENCES monitoring_tags(tag_id),
            FOREIGN KEY (target_id) REFERENCES monitoring_target(target_id)
        );
INSERT INTO "tag_target_mapping" VALUES(2,1);
INSERT INTO "tag_target_mapping" VALUES(8,1);
INSERT INTO "tag_target_mapping" VALUES(8,2);
INSERT INTO "tag_target_mapping" VALUES(10,2);
INSERT INTO "tag_target_mapping" VALUES(6,3);
INSERT INTO "tag_target_mapping" VALUES(8,3);
INSERT INTO "tag_target_mapping" VALUES(3,4);
INSERT INTO "tag_target_mapping" VALUES(8,4);
INSERT INTO "tag_target_mapping" VALUES(2,5);
INSERT INTO "tag_target_mapping" VALUES(11,5);
INSERT INTO "tag_target_mapping" VALUES(6,6);
INSERT INTO "tag_target_mapping" VALUES(11,6);
INSERT INTO "tag_target_mapping" VALUES(7,7);
INSERT INTO "tag_target_mapping" VALUES(11,7);
INSERT INTO "tag_target_mapping" VALUES(3,8);
INSERT INTO "tag_target_mapping" VALUES(11,8);
INSERT INTO "tag_target_mapping" VALUES(2,9);
INSERT INTO "tag_target_mapping" VALUES(4,9);
INSERT INTO "tag_target_mapping" VALUES(3,10);
INSERT INTO "tag_target_mapping" VALUES(4,10);
INSERT INTO "tag_target_mapping" VALUES(2,11);
INSERT INTO "tag_target_mapping" VALUES(1,11);
INSERT INTO "tag_target_mapping" VALUES(1,12);
INSERT INTO "tag_target_mapping" VALUES(3,12);
INSERT INTO "tag_target_mapping" VALUES(2,13);
INSERT INTO "tag_target_mapping" VALUES(1,13);
INSERT INTO "tag_target_mapping" VALUES(1,14);
INSERT INTO "tag_target_mapping" VALUES(3,14);
INSERT INTO "tag_target_mapping" VALUES(2,15);
INSERT INTO "tag_target_mapping" VALUES(8,15);
INSERT INTO "tag_target_mapping" VALUES(8,16);
INSERT INTO "tag_target_mapping" VALUES(10,16);
INSERT INTO "tag_target_mapping" VALUES(6,17);
INSERT INTO "tag_target_mapping" VALUES(8,17);
INSERT INTO "tag_target_mapping" VALUES(3,18);
INSERT INTO "tag_target_mapping" VALUES(8,18);
INSERT INTO "tag_target_mapping" VALUES(2,19);
INSERT INTO "tag_target_mapping" VALUES(9,19);
INSERT INTO "tag_target_mapping" VALUES(3,20);
INSERT INTO "tag_target_mapping" VALUES(9,20);
INSERT INTO "tag_target_mapping" VALUES(5,21);
INSERT INTO "tag_target_mapping" VALUES(2,21);
INSERT INTO "tag_target_mapping" VALUES(5,22);
INSERT INTO "tag_target_mapping" VALUES(3,22);
INSERT INTO "tag_target_mapping" VALUES(18,21);
INSERT INTO "tag_target_mapping" VALUES(15,21);
INSERT INTO "tag_target_mapping" VALUES(18,22);
INSERT INTO "tag_target_mapping" VALUES(16,22);
INSERT INTO "tag_target_mapping" VALUES(15,19);
INSERT INTO "tag_target_mapping" VALUES(20,19);
INSERT INTO "tag_target_mapping" VALUES(16,20);
INSERT INTO "tag_target_mapping" VALUES(20,20);
INSERT INTO "tag_target_mapping" VALUES(15,15);
INSERT INTO "tag_target_mapping" VALUES(21,15);
INSERT INTO "tag_target_mapping" VALUES(16,18);
INSERT INTO "tag_target_mapping" VALUES(21,18);
INSERT INTO "tag_target_mapping" VALUES(12,29);
INSERT INTO "tag_target_mapping" VALUES(21,29);
INSERT INTO "tag_target_mapping" VALUES(19,30);
INSERT INTO "tag_target_mapping" VALUES(21,30);
INSERT INTO "tag_target_mapping" VALUES(15,13);
INSERT INTO "tag_target_mapping" VALUES(14,13);
INSERT INTO "tag_target_mapping" VALUES(14,14);
INSERT INTO "tag_target_mapping" VALUES(16,14);
INSERT INTO "tag_target_mapping" VALUES(15,11);
INSERT INTO "tag_target_mapping" VALUES(14,11);
INSERT INTO "tag_target_mapping" VALUES(14,12);
INSERT INTO "tag_target_mapping" VALUES(16,12);
INSERT INTO "tag_target_mapping" VALUES(15,9);
INSERT INTO "tag_target_mapping" VALUES(17,9);
INSERT INTO "tag_target_mapping" VALUES(16,10);
INSERT INTO "tag_target_mapping" VALUES(17,10);
INSERT INTO "tag_target_mapping" VALUES(15,5);
INSERT INTO "tag_target_mapping" VALUES(13,5);
INSERT INTO "tag_target_mapping" VALUES(16,8);
INSERT INTO "tag_target_mapping" VALUES(13,8);
INSERT INTO "tag_target_mapping" VALUES(12,39);
INSERT INTO "tag_target_mapping" VALUES(13,39);
INSERT INTO "tag_target_mapping" VALUES(19,40);
INSERT INTO "tag_target_mapping" VALUES(13,40);
INSERT INTO "tag_target_mapping" VALUES(15,1);
INSERT INTO "tag_target_mapping" VALUES(21,1);
INSERT INTO "tag_target_mapping" VALUES(16,4);
INSERT INTO "tag_target_mapping" VALUES(21,4);
INSERT INTO "tag_target_mapping" VALUES(19,43);
INSERT INTO "tag_target_mapping" VALUES(21,43);
CREATE TABLE trend_data (
            rank INTEGER NOT NULL,
            step INTEGER NOT NULL,
            target_id INTEGER NOT NULL,
            metric_id INTEGER NOT NULL,
            norm REAL DEFAULT NULL, max REAL DEFAULT NULL, min REAL DEFAULT NULL, mean REAL DEFAULT NULL,
            PRIMARY KEY (rank, step, target_id, metric_id),
            FOREIGN KEY (target_id) REFERENCES monitoring_targets(target_id),
            FOREIGN KEY (metric_id) REFERENCES monitoring_metrics(metric_id)
        ) WITHOUT ROWID;
INSERT INTO "trend_data" VALUES(0,0,1,1,5.56900691986084,2.6890869140625,-1.60948479175567626953e+00,-1.22250698506832122802e-01);
INSERT INTO "trend_data" VALUES(0,0,1,2,4.82132770121097564697e-02,1.95458456873893737792e-02,-2.64791268855333328247e-02,3.88051084321272554689e-11);
INSERT INTO "trend_data" VALUES(0,0,2,1,2.32697725296020507812e+00,3.51479113101959228515e-01,-3.52679371833801269531e-01,-1.41890402883291244506e-02);
INSERT INTO "trend_data" VALUES(0,0,3,1,7.49650478363037109375e-01,3.35668355226516723632e-01,-2.89780020713806152343e-01,4.37741056084632873535e-02);
INSERT INTO "trend_data" VALUES(0,0,4,1,4.08856678009033203125e+00,1.43852138519287109375e+00,-1.53693890571594238281e+00,1.03960961103439331054e-01);
INSERT INTO "trend_data" VALUES(0,0,4,2,0.0470251590013504,2.18817554414272308349e-02,-3.19588780403137207031e-02,-2.32830643653869628906e-10);
INSERT INTO "trend_data" VALUES(0,0,5,1,4.08856678009033203125e+00,1.43852138519287109375e+00,-1.53693890571594238281e+00,1.03960961103439331054e-01);
INSERT INTO "trend_data" VALUES(0,0,5,2,3.1936861574649810791e-02,1.33715206757187843322e-02,-4.81416657567024230957e-03,1.97028578259050846099e-03);
INSERT INTO "trend_data" VALUES(0,0,6,1,4.0,1.0,1.0,1.0);
INSERT INTO "trend_data" VALUES(0,0,7,1,0.0,0.0,0.0,0.0);
INSERT INTO "trend_data" VALUES(0,0,8,1,6.92806673049926757812e+00,1.86734104156494140625e+00,-2.03303670883178710937e+00,-4.96705387931228870002e-09);
INSERT INTO "trend_data" VALUES(0,0,8,2,4.82132770121097564697e-02,1.95458456873893737792e-02,-2.64791268855333328247e-02,3.88051084321272554689e-11);
INSERT INTO "trend_data" VALUES(0,0,9,1,6.92806673049926757812e+00,1.86734104156494140625e+00,-2.03303670883178710937e+00,-4.96705387931228870002e-09);
INSERT INTO "trend_data" VALUES(0,0,9,2,0.0382046215236187,1.33715206757187843322e-02,-9.91520751267671585083e-03,1.43689010292291641235e-03);
INSERT INTO "trend_data" VALUES(0,0,10,1,4.90544223785400390625e+00,1.86734104156494140625e+00,0.0,4.12114530801773071289e-01);
INSERT INTO "trend_data" VALUES(0,0,10,2,3.1936861574649810791e-02,1.33715206757187843322e-02,-4.81416657567024230957e-03,1.97028578259050846099e-03);
INSERT INTO "trend_data" VALUES(0,0,11,1,4.90544223785400390625e+00,1.86734104156494140625e+00,0.0,4.12114530801773071289e-01);
INSERT INTO "trend_data" VALUES(0,0,11,2,0.0382046215236187,1.33715206757187843322e-02,-9.91520751267671585083e-03,1.43689010292291641235e-03);
INSERT INTO "trend_data" VALUES(0,0,12,1,4.90544223785400390625e+00,1.86734104156494140625e+00,0.0,4.12114530801773071289e-01);
INSERT INTO "trend_data" VALUES(0,0,12,2,0.0382046215236187,1.33715206757187843322e-02,-9.91520751267671585083e-03,1.43689010292291641235e-03);
INSERT INTO "trend_data" VALUES(0,0,13,1,4.90544223785400390625e+00,1.86734104156494140625e+00,0.0,4.12114530801773071289e-01);
INSERT INTO "trend_data" VALUES(0,0,13,2,0.0764092430472374,2.67430413514375686645e-02,-1.98304150253534317016e-02,2.8737802058458328247e-03);
INSERT INTO "trend_data" VALUES(0,0,14,1,2.45272111892700195312e+00,9.33670520782470703125e-01,0.0,2.06057265400886535644e-01);
INSERT INTO "trend_data" VALUES(0,0,14,2,0.0382046215236187,1.33715206757187843322e-02,-9.91520751267671585083e-03,1.43689010292291641235e-03);
INSERT INTO "trend_data" VALUES(0,0,15,1,2.45272111892700195312e+00,9.33670520782470703125e-01,0.0,2.06057265400886535644e-01);
INSERT INTO "trend_data" VALUES(0,0,15,2,1.21356599032878875732e-01,5.41134029626846313476e-02,-6.20616301894187927246e-02,-6.84448564425110816955e-03);
INSERT INTO "trend_data" VALUES(0,0,16,1,1.18649172782897949218e+00,2.25750774145126342773e-01,-2.41107970476150512695e-01,-2.92736459523439407348e-02);
INSERT INTO "trend_data" VALUES(0,0,17,1,1.07798300683498382568e-01,9.04018878936767578125e-02,-4.94203865528106689453e-02,1.76942497491836547851e-02);
INSERT INTO "trend_data" VALUES(0,0,18,1,7.28139579296112060546e-01,3.24680417776107788085e-01,-3.723697662353515625e-01,-4.1066903620958328247e-02);
INSERT INTO "trend_data" VALUES(0,0,18,2,1.32363408803939819335e-01,6.77062571048736572265e-02,-1.09056562185287475585e-01,-2.05334573984146118164e-02);
INSERT INTO "trend_data" VALUES(0,0,19,1,7.28139579296112060546e-01,3.24680417776107788085e-01,-3.723697662353515625e-01,-4.1066903620958328247e-02);
INSERT INTO "trend_data" VALUES(0,0,19,2,2.88675159215927124023e-01,0.0833333358168602,0.0833333358168602,0.083333320915699);
INSERT INTO "trend_data" VALUES(0,0,20,1,2.05301195383071899414e-01,1.38659238815307617187e-01,1.39572599437087774276e-03,4.41822707653045654296e-02);
INSERT INTO "trend_data" VALUES(0,0,20,2,1.21356599032878875732e-01,5.41134029626846313476e-02,-6.20616301894187927246e-02,-6.84448564425110816955e-03);
INSERT INTO "trend_data" VALUES(0,0,21,1,2.05301195383071899414e-01,1.38659238815307617187e-01,1.39572599437087774276e-03,4.41822707653045654296e-02);
INSERT INTO "trend_data" VALUES(0,0,21,2,1.0,1.0,1.0,1.0);
INSERT INTO "trend_data" VALUES(0,0,22,1,4.41822707653045654296e-02,4.41822707653045654296e-02,4.41822707653045654296e-02,4.41822707653045654296e-02);
INSERT INTO "trend_data" VALUES(0,0,22,2,2.88675159215927124023e-01,0.0833333358168602,0.0833333358168602,0.083333320915699);
INSERT INTO "trend_data" VALUES(0,0,29,2,0.0764092430472374,2.67430413514375686645e-02,-1.98304150253534317016e-02,2.8737802058458328247e-03);
INSERT INTO "trend_data" VALUES(0,0,30,2,1.72956407070159912109e-01,4.00034449994564056396e-02,-6.6296920180320739746e-02,-4.65718936175107955932e-03);
INSERT INTO "trend_data" VALUES(0,0,39,2,3.11545748263597488403e-02,1.67982876300811767578e-02,-0.000560145708732307,5.31166186556220054626e-03);
INSERT INTO "trend_data" VALUES(0,0,40,2,3.45930941402912139892e-02,1.60563308745622634887e-02,-4.81416657567024230957e-03,5.91085711494088172912e-03);
INSERT INTO "trend_data" VALUES(0,0,43,2,1.75794333219528198242e-01,6.0968093574047088623e-02,-6.18899613618850708007e-02,2.05091055249795317649e-10);
COMMIT;
